#include "tests/drawn.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/e2e.h"

void drawn_by_nobody(void)
{
    char here[256], path[4096];
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    e2e_write("gnuplot", "#!/bin/sh\n"
                         "[ \"$1\" = --version ] && exit 0\n"
                         "name=${4%.gp}\n" /* of: gnuplot -d -e SVG NAME.gp -e PNG NAME.gp */
                         "echo '<svg></svg>' >$name.svg.partial && echo IEND >$name.png.partial\n");
    ck_assert_int_eq(chmod("gnuplot", 0755), 0);
    snprintf(path, sizeof path, "%s:%s", here, getenv("PATH"));
    setenv("PATH", path, 1);
}
