/* JSON files that carry their own checksum: the last member, "sha256", is that of all bytes of the file before its digits. */
#ifndef BK_SEALED_H
#define BK_SEALED_H

#include "io/json.h"

bk_status bk_sealed_save(bk_json *object, const char *path, bk_error *err) BK_MUST_USE; /* adds the member */
bk_status bk_sealed_load(const char *path, bk_json **out, bk_error *err) BK_MUST_USE;   /* bytes that do not match: BK_EFORMAT */

#endif
