#include "experiments/version.h"

#include "io/file.h"

bk_status bk_program_sha256(char hex[65], bk_error *err)
{
    return bk_sha256_file(BK_PROGRAM_FILE, hex, err);
}
