/* Completeness: what is listed is there. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cases_ops.h"
#include "tests/suite.h"

/* Which inputs of an op some case differentiates. */
static unsigned differentiated(const char *op)
{
    unsigned in = 0;
    for (int i = 0; i < bk_op_case_count; i++)
        for (int k = 0; !bk_op_cases[i].wide && k < BK_CASE_INPUTS && !strcmp(bk_op_cases[i].op, op); k++)
            in |= bk_op_cases[i].in[k].differentiate ? 1u << k : 0;
    return in;
}

START_TEST(every_gradient_of_every_op_has_a_case)
{
    for (int i = 0; i < bk_op_count; i++)
        ck_assert_msg(differentiated(bk_ops[i]->name) == bk_ops[i]->diff_in, "%s: inputs %x have gradients, cases differentiate %x", bk_ops[i]->name,
                      bk_ops[i]->diff_in, differentiated(bk_ops[i]->name));
}
END_TEST

START_TEST(every_case_belongs_to_an_op)
{
    for (int i = 0; i < bk_op_case_count; i++) {
        bool known = false;
        for (int k = 0; k < bk_op_count; k++) known |= !strcmp(bk_ops[k]->name, bk_op_cases[i].op);
        ck_assert_msg(known, "case %s, %s: there is no such op", bk_op_cases[i].op, bk_op_cases[i].name);
    }
}
END_TEST

START_TEST(every_op_has_a_wide_case)
{
    for (int i = 0; i < bk_op_count; i++) {
        bool wide = false;
        for (int k = 0; k < bk_op_case_count; k++) wide |= bk_op_cases[k].wide && !strcmp(bk_ops[i]->name, bk_op_cases[k].op);
        ck_assert_msg(wide, "%s has no case that is larger than a tile", bk_ops[i]->name);
    }
}
END_TEST

START_TEST(ops_are_described_and_complete)
{
    for (int i = 0; i < bk_op_count; i++) {
        const bk_op *op = bk_ops[i];
        ck_assert_msg(op->formula && op->formula[0], "%s has no formula", op->name);
        ck_assert_msg(op->infer && op->forward && op->backward, "%s lacks a function", op->name);
        ck_assert_msg(op->n_in_min >= 1 && op->n_in_min <= op->n_in_max && op->n_in_max <= BK_MAX_IN, "%s: %d..%d inputs", op->name, op->n_in_min,
                      op->n_in_max);
        ck_assert_msg(op->diff_in && op->diff_in < 1u << op->n_in_max, "%s: gradients %x of %d inputs", op->name, op->diff_in, op->n_in_max);
        for (int k = 0; k < i; k++) ck_assert_msg(strcmp(op->name, bk_ops[k]->name), "two ops are called %s", op->name);
    }
}
END_TEST

static void no_empty_slot(const bk_backend *be)
{
#define BK_SLOT(slot, args) ck_assert_msg(be->k.slot != NULL, "backend %s has no kernel `%s`", be->name, #slot);
    BK_SLOTS(BK_SLOT)
#undef BK_SLOT
}

START_TEST(every_slot_of_ref_and_guard_is_filled)
{
    for (bk_dtype real = BK_F32; real <= BK_F64; real++) {
        no_empty_slot(bk_backend_ref(real));
        no_empty_slot(bk_backend_guard(real));
        ck_assert_int_eq(bk_backend_ref(real)->dtype, real);
        ck_assert_int_eq(bk_backend_guard(real)->dtype, real);
        ck_assert(!bk_backend_guard(real)->host_memory);
    }
}
END_TEST

START_TEST(every_slot_of_cpu_is_filled)
{
    no_empty_slot(bk_backend_cpu());
}
END_TEST

START_TEST(reference_of_integers_does_not_exist)
{
    ck_assert_ptr_null(bk_backend_ref(BK_I32));
    ck_assert_ptr_null(bk_backend_guard(BK_U8));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("registry");
    TCase *t = tcase_create("completeness");
    tcase_add_test(t, every_gradient_of_every_op_has_a_case);
    tcase_add_test(t, every_case_belongs_to_an_op);
    tcase_add_test(t, every_op_has_a_wide_case);
    tcase_add_test(t, ops_are_described_and_complete);
    tcase_add_test(t, every_slot_of_ref_and_guard_is_filled);
    tcase_add_test(t, every_slot_of_cpu_is_filled);
    tcase_add_test(t, reference_of_integers_does_not_exist);
    suite_add_tcase(s, t);
    return run_suite(s);
}
