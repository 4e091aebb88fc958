/* The page of reports, as a part of the program. */
        .section .rodata
        .global ek_report_page, ek_report_page_end
        .hidden ek_report_page, ek_report_page_end
ek_report_page:
        .incbin EK_PAGE
ek_report_page_end:
        .section .note.GNU-stack, "", %progbits
