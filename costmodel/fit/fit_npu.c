/* Tickets on an accelerator: a staircase over row buckets, and what handing over and taking back cost. */
#include "costmodel/fit/fit_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One constant. */
static lvr_status fit_constant(const lvr_op_sample *samples, size_t n, double *ret_ns, lvr_fit_term *ret_term,
                               lvr_error *err)
{
    lvr_op_cost cost;
    const lvr_status st = lvr_fit_op(samples, n, false, &cost, ret_term, err);
    if (!st)
        *ret_ns = cost.curve.ns[0];
    return st;
}

static lvr_status fit_launch(const lvr_npu_sample *s, size_t n, lvr_op_sample *scratch, double *ret_ns,
                             lvr_fit_term *ret_term, lvr_error *err)
{
    for (size_t i = 0; i < n; i++)
        scratch[i] = (lvr_op_sample){.rows = 1, .ns = s[i].launch_ns};
    const lvr_status st = fit_constant(scratch, n, ret_ns, ret_term, err);
    snprintf(ret_term->form, sizeof ret_term->form, "constant: from a ticket's submission to its start");
    return st;
}

static lvr_status fit_sync(const lvr_npu_sample *s, size_t n, lvr_op_sample *scratch, double *ret_ns,
                           lvr_fit_term *ret_term, lvr_error *err)
{
    size_t used = 0;
    for (size_t i = 0; i < n; i++)
        if (s[i].sync_ns >= 0)
            scratch[used++] = (lvr_op_sample){.rows = 1, .ns = s[i].sync_ns};
    if (used == 0) {
        *ret_ns = 0;
        *ret_term = (lvr_fit_term){0};
        snprintf(ret_term->form, sizeof ret_term->form,
                 "not fitted: the host never just waited for a ticket");
        return LVR_OK;
    }
    const lvr_status st = fit_constant(scratch, used, ret_ns, ret_term, err);
    snprintf(ret_term->form, sizeof ret_term->form,
             "constant: from a ticket's end to the host's next step, host time in between included");
    return st;
}

static lvr_status fit_run(const lvr_npu_sample *s, size_t n, lvr_op_sample *scratch, lvr_npu_cost *ret,
                          lvr_fit_term *ret_term, lvr_error *err)
{
    lvr_op_cost cost;
    for (size_t i = 0; i < n; i++)
        scratch[i] = (lvr_op_sample){.rows = s[i].bucket, .context = s[i].context, .ns = s[i].run_ns};
    const lvr_status st = lvr_fit_op(scratch, n, true, &cost, ret_term, err);
    if (st)
        return st;
    if (cost.curve.n > LVR_NPU_MAX_BUCKETS)
        return lvr_fail(err, LVR_ERR_FORMAT, "fit: %u row buckets, expected at most %u", cost.curve.n,
                        LVR_NPU_MAX_BUCKETS);
    ret->n = cost.curve.n;
    ret->ctx_ns = cost.ctx_ns;
    for (uint32_t i = 0; i < cost.curve.n; i++) {
        ret->bucket[i] = cost.curve.rows[i];
        ret->ns[i] = cost.curve.ns[i];
    }
    snprintf(ret_term->form, sizeof ret_term->form,
             "a value per row bucket + ctx_ns * bucket * context, start to end on the accelerator");
    return LVR_OK;
}

lvr_status lvr_fit_npu(const char *name, const lvr_npu_sample *samples, size_t n, lvr_npu_cost *ret,
                       lvr_fit_term ret_terms[LVR_FIT_NPU_TERMS], lvr_error *err)
{
    if (n == 0)
        return lvr_fail(err, LVR_ERR_FORMAT, "fit: no samples");
    lvr_npu_cost cost = {0};
    lvr_fit_term terms[LVR_FIT_NPU_TERMS];
    lvr_op_sample *scratch = calloc(n, sizeof(*scratch));
    if (!scratch)
        return lvr_fail(err, LVR_ERR_NOMEM, "fit: out of memory for %zu samples", n);
    memset(terms, 0, sizeof terms);
    lvr_status st = fit_run(samples, n, scratch, &cost, &terms[0], err);
    if (!st)
        st = fit_launch(samples, n, scratch, &cost.launch_ns, &terms[1], err);
    if (!st)
        st = fit_sync(samples, n, scratch, &cost.sync_ns, &terms[2], err);
    free(scratch);
    if (st)
        return st;
    snprintf(terms[0].name, sizeof terms[0].name, "%s_npu", name);
    snprintf(terms[1].name, sizeof terms[1].name, "%s_npu_launch", name);
    snprintf(terms[2].name, sizeof terms[2].name, "%s_npu_sync", name);
    *ret = cost;
    for (int i = 0; i < LVR_FIT_NPU_TERMS; i++)
        ret_terms[i] = terms[i];
    return LVR_OK;
}
