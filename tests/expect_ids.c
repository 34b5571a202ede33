#include "tests/expect_ids.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

void expect_n(const bk_tokenizer *t, const char *text, size_t len, bool special, const int32_t *want, int64_t n)
{
    bk_error err = {0};
    int32_t *ids;
    int64_t got;
    ck_assert_msg(bk_tokenizer_encode(t, text, len, special, &ids, &got, &err) == BK_OK, "'%s': %s", text, err.msg);
    for (int64_t i = 0; i < got && i < n; i++)
        ck_assert_msg(ids[i] == want[i], "'%s': id %lld is %d, not %d", text, (long long)i, ids[i], want[i]);
    ck_assert_msg(got == n, "'%s': %lld ids, not %lld", text, (long long)got, (long long)n);
    free(ids);
}

void encode_fails(const bk_tokenizer *t, const char *text, size_t len, const char *says)
{
    bk_error err = {0};
    int32_t *ids;
    int64_t n;
    ck_assert_int_eq(bk_tokenizer_encode(t, text, len, false, &ids, &n, &err), BK_EFORMAT);
    ck_assert_msg(strstr(err.msg, says) != NULL, "%s", err.msg);
    ck_assert_ptr_null(ids);
}

void round_trip(const bk_tokenizer *t, const char *text, size_t len)
{
    bk_error err = {0};
    int32_t *ids;
    int64_t n;
    char *back;
    size_t back_len;
    ck_assert_msg(bk_tokenizer_encode(t, text, len, false, &ids, &n, &err) == BK_OK, "%s", err.msg);
    ck_assert_msg(bk_tokenizer_decode(t, ids, n, false, &back, &back_len, &err) == BK_OK, "%s", err.msg);
    ck_assert_uint_eq(back_len, len);
    ck_assert_mem_eq(back, text, len);
    ck_assert_int_eq(back[back_len], 0);
    free(back);
    free(ids);
}
