/* The page of reports, as a part of the program, and its size (32 bits). */
        .section .rodata
        .global ek_report_page, ek_report_page_bytes
        .hidden ek_report_page, ek_report_page_bytes
ek_report_page:
        .incbin EK_PAGE
end:
        .balign 4
ek_report_page_bytes:
        .long end - ek_report_page
        .section .note.GNU-stack, "", %progbits
