/* write_page DESCRIPTION.json PAGE.html: a page from a description alone, for the test in the browser. */
#include <stdio.h>

#include <jansson.h>

#include "base/whole_file.h"
#include "report/report.h"

int main(int argc, char **argv)
{
    json_error_t error;
    json_t *page = argc == 3 ? json_load_file(argv[1], 0, &error) : NULL;
    if (!page) {
        fprintf(stderr, "write_page: %s\n", argc == 3 ? error.text : "DESCRIPTION.json PAGE.html are needed");
        return 2;
    }
    ek_whole_file file;
    ek_status status = ek_whole_file_open(&file, argv[2]);
    if (status == EK_OK)
        status = ek_whole_file_end(&file, ek_report_write(file.file, page));
    if (status != EK_OK)
        fprintf(stderr, "write_page: %s\n", ek_error());
    json_decref(page);
    return status == EK_OK ? 0 : 1;
}
