/*
 * Every level against the C reference, bit for bit (INV-ROW). There is no list of implementations: levels are
 * walked upward, and whatever pointer is new at a level is compared, so that a new kernel is tested by being
 * there. What the contract promises of every level, C too - rows independent of their batch, groups of their
 * split - is checked at each.
 */
#include "tests/kernels/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MATMUL_WORK                                                                                      \
    3000000u /* multiply-adds of one case: the reference calls fmaf for each of F16 and F32 */

typedef struct levels {
    const lvr_kernels *ref, *now;
    const char *name;
} levels;

/* ---- matrix products ---- */

typedef struct product {
    lvr_wtype type;
    uint32_t n_out, n_in, rows;
    kt_weights weights;
    kt_shape shape;
    kt_buf packed;
    lvr_matrix m;
    lvr_acts a;
    float *x;
} product;

static void product_init(product *p, const lvr_kernels *k)
{
    const size_t row_bytes = lvr_wtype_row_bytes(p->type, p->n_in);
    const size_t packed_bytes = lvr_packed_bytes(p->type, p->n_out, p->n_in);
    uint8_t *gguf = kt_alloc(row_bytes * p->n_out);
    kt_fill_weights(p->type, p->weights, gguf, row_bytes * p->n_out);
    p->packed = kt_buf_new(packed_bytes, 0);
    lvr_pack_matrix(p->type, p->n_out, p->n_in, gguf, p->packed.data);
    kt_check(kt_buf_intact(&p->packed), "packing %s %u x %u wrote outside its buffer",
             lvr_wtype_name(p->type), p->n_out, p->n_in);
    free(gguf);
    p->m = (lvr_matrix){p->type, p->n_out, p->n_in, p->packed.data};
    const size_t n = (size_t)p->rows * p->n_in, n_blocks = p->n_in / LVR_BLOCK;
    p->x = kt_alloc(n * sizeof(float));
    kt_fill(p->shape, p->x, n);
    p->a = (lvr_acts){.n_rows = p->rows,
                      .n_in = p->n_in,
                      .x = p->x,
                      .q = kt_alloc(n),
                      .d = kt_alloc(p->rows * n_blocks * sizeof(float)),
                      .hsum = kt_alloc(p->rows * n_blocks * 2 * sizeof(int16_t))};
    for (size_t r = 0; r < p->rows; r++)
        k->quantize_row(p->x + r * p->n_in, p->n_in, p->a.q + r * p->n_in, p->a.d + r * n_blocks,
                        p->a.hsum + r * n_blocks * 2);
}

static void product_free(product *p)
{
    kt_buf_free(&p->packed);
    free(p->x);
    free(p->a.q);
    free(p->a.d);
    free(p->a.hsum);
}

static lvr_acts one_row(const lvr_acts *a, uint32_t row)
{
    const size_t n_blocks = a->n_in / LVR_BLOCK;
    return (lvr_acts){.n_rows = 1,
                      .n_in = a->n_in,
                      .x = a->x + (size_t)row * a->n_in,
                      .q = a->q + (size_t)row * a->n_in,
                      .d = a->d + row * n_blocks,
                      .hsum = a->hsum + row * n_blocks * 2};
}

static void check_product(const product *p, const kt_buf *want, const kt_buf *got, size_t stride,
                          const char *what)
{
    bool same = true;
    for (size_t r = 0; r < p->rows && same; r++) {
        const float *w = (const float *)want->data + r * stride, *g = (const float *)got->data + r * stride;
        size_t at = 0;
        same = kt_check(kt_same_floats(w, g, p->n_out, &at),
                        "%s: %s %u x %u, row %zu of %u, weights %d, shape %d: output %zu is %a, not %a", what,
                        lvr_wtype_name(p->type), p->n_out, p->n_in, r, p->rows, p->weights, p->shape, at,
                        (double)g[at], (double)w[at]);
        /* the gap between rows belongs to someone else */
        same = same &&
               kt_check(memcmp(w + p->n_out, g + p->n_out, (stride - p->n_out) * sizeof(float)) == 0,
                        "%s: %s wrote past output %u of row %zu", what, lvr_wtype_name(p->type), p->n_out, r);
    }
    kt_check(kt_buf_intact(got), "%s: %s %u x %u wrote outside its output", what, lvr_wtype_name(p->type),
             p->n_out, p->n_in);
}

static void run_split(const product *p, lvr_matmul_fn fn, kt_buf *out, size_t stride)
{
    const uint32_t n_groups = (p->n_out + LVR_GROUP - 1) / LVR_GROUP;
    for (uint32_t begin = 0; begin < n_groups;) {
        const uint32_t end = begin + 1 + kt_below(n_groups - begin);
        fn(&p->m, &p->a, begin, end, out->data, stride);
        begin = end;
    }
}

static void run_rows_alone(const product *p, lvr_matmul_fn fn, kt_buf *out, size_t stride)
{
    const uint32_t n_groups = (p->n_out + LVR_GROUP - 1) / LVR_GROUP;
    for (uint32_t r = p->rows; r-- > 0;) {
        const lvr_acts a = one_row(&p->a, r);
        fn(&p->m, &a, 0, n_groups, (float *)out->data + r * stride, stride);
    }
}

static void compare_product(const levels *l, product *p)
{
    const uint32_t n_groups = (p->n_out + LVR_GROUP - 1) / LVR_GROUP;
    const size_t stride = p->n_out + kt_below(5);
    const size_t bytes = p->rows * stride * sizeof(float);
    const lvr_matmul_fn ref = lvr_kernels_matmul(l->ref, p->type), now = lvr_kernels_matmul(l->now, p->type);
    product_init(p, l->ref);
    kt_buf want = kt_buf_new(bytes, 0), whole = kt_buf_new(bytes, 4 * kt_below(16));
    kt_buf split = kt_buf_new(bytes, 0), alone = kt_buf_new(bytes, 0);
    ref(&p->m, &p->a, 0, n_groups, want.data, stride);
    now(&p->m, &p->a, 0, n_groups, whole.data, stride);
    check_product(p, &want, &whole, stride, l->name);
    run_split(p, now, &split, stride);
    check_product(p, &want, &split, stride, "groups split");
    run_rows_alone(p, now, &alone, stride);
    check_product(p, &want, &alone, stride, "rows alone");
    kt_buf_free(&want);
    kt_buf_free(&whole);
    kt_buf_free(&split);
    kt_buf_free(&alone);
    product_free(p);
}

/* An odd number of blocks (of 32 or 256 inputs), or any number. */
static uint32_t some_inputs(lvr_wtype t, uint32_t most_units, bool odd)
{
    const uint32_t unit = lvr_wtype_inputs(t) > LVR_BLOCK ? lvr_wtype_inputs(t) : LVR_BLOCK;
    const uint32_t n_units = 1 + kt_below(most_units);
    return unit * (odd ? n_units | 1u : n_units);
}

/* Every pair of adversarial weights and activations, every number of rows to 70, then random sizes. */
static void check_matmul(const levels *l, lvr_wtype t)
{
    const bool super = lvr_wtype_inputs(t) > LVR_BLOCK;
    for (unsigned w = 0; w < KW_SHAPES; w++)
        for (unsigned s = 0; s < KT_SHAPES; s++) {
            product p = {.type = t, .n_out = 17, .rows = s % 2 != 0 ? 5 : 11, .weights = w, .shape = s};
            p.n_in = some_inputs(t, 3, true);
            compare_product(l, &p);
        }
    for (uint32_t rows = 1; rows <= kt_rounds(70); rows++) {
        product p = {.type = t, .n_out = 1 + kt_below(40), .rows = rows};
        p.n_in = some_inputs(t, super ? 2 : 5, false);
        compare_product(l, &p);
    }
    for (uint32_t i = 0; i < kt_rounds(40); i++) {
        product p = {.type = t, .n_in = some_inputs(t, super ? 16 : 128, false), .rows = 1 + kt_below(12)};
        const uint32_t most = kt_rounds(MAX_MATMUL_WORK) / (p.n_in * p.rows);
        p.n_out = 1 + kt_below(most < 200 ? most : 200);
        p.weights = kt_below(KW_SHAPES);
        p.shape = kt_below(KT_SHAPES);
        compare_product(l, &p);
    }
    product odd = {.type = t, .n_out = 33, .rows = 7, .weights = KW_EXTREMES, .shape = KT_ONE_SIGN};
    odd.n_in = super ? 256 * 15 : 32 * 127;
    compare_product(l, &odd);
    /* more activations than a level may keep ready at a time (AMX: 40 blocks of this many rows) */
    product large = {.type = t, .n_out = 18, .n_in = super ? 256 * 9 : 32 * 69, .rows = 40};
    compare_product(l, &large);
}

/* ---- quantisation of activations ---- */

static void compare_quantize(const levels *l, kt_shape shape, uint32_t n)
{
    float *x = kt_alloc(n * sizeof(float));
    kt_fill(shape, x, n);
    kt_buf q[2], d[2], s[2];
    for (int i = 0; i < 2; i++) {
        q[i] = kt_buf_new(n, i);
        d[i] = kt_buf_new(n / LVR_BLOCK * sizeof(float), 0);
        s[i] = kt_buf_new(n / LVR_BLOCK * sizeof(int32_t), 0);
        (i == 0 ? l->ref : l->now)->quantize_row(x, n, q[i].data, d[i].data, s[i].data);
        kt_check(kt_buf_intact(&q[i]) && kt_buf_intact(&d[i]) && kt_buf_intact(&s[i]),
                 "quantize_row wrote outside");
    }
    size_t at;
    kt_check(memcmp(q[0].data, q[1].data, n) == 0, "%s: quantize_row, q, n %u, shape %d", l->name, n, shape);
    kt_check(kt_same_floats(d[0].data, d[1].data, n / LVR_BLOCK, &at), "%s: quantize_row, d, n %u, shape %d",
             l->name, n, shape);
    kt_check(memcmp(s[0].data, s[1].data, s[0].bytes) == 0, "%s: quantize_row, hsum, n %u, shape %d", l->name,
             n, shape);
    for (int i = 0; i < 2; i++) {
        kt_buf_free(&q[i]);
        kt_buf_free(&d[i]);
        kt_buf_free(&s[i]);
    }
    free(x);
}

static void check_quantize(const levels *l)
{
    for (unsigned shape = 0; shape < KT_SHAPES; shape++)
        for (uint32_t n_blocks = 1; n_blocks <= kt_rounds(130); n_blocks += 1 + kt_below(6))
            compare_quantize(l, shape, n_blocks * LVR_BLOCK);
}

/* ---- element by element ---- */

typedef void (*binary_fn)(const lvr_kernels *k, const float *a, const float *b, uint32_t n, float *y);

static void call_add(const lvr_kernels *k, const float *a, const float *b, uint32_t n, float *y)
{
    k->add(a, b, n, y);
}

static void call_silu_mul(const lvr_kernels *k, const float *a, const float *b, uint32_t n, float *y)
{
    k->silu_mul(a, b, n, y);
}

static void call_rmsnorm(const lvr_kernels *k, const float *a, const float *b, uint32_t n, float *y)
{
    k->rmsnorm(a, b, n, 1e-5f, y);
}

static void compare_binary(const levels *l, binary_fn call, const char *what, kt_shape shape, uint32_t n)
{
    float *a = kt_alloc(n * sizeof(float)), *b = kt_alloc(n * sizeof(float));
    kt_fill(shape, a, n);
    kt_fill(KT_NORMAL, b, n);
    if (shape == KT_NORMAL) /* over the whole range where exp is neither 0 nor infinite, and beyond */
        for (uint32_t i = 0; i < n; i++)
            a[i] *= 40.0f;
    kt_buf want = kt_buf_new(n * sizeof(float), 0), got = kt_buf_new(n * sizeof(float), 4 * kt_below(16));
    call(l->ref, a, b, n, want.data);
    call(l->now, a, b, n, got.data);
    size_t at = 0;
    kt_check(kt_same_floats(want.data, got.data, n, &at), "%s: %s, n %u, shape %d, element %zu", l->name,
             what, n, shape, at);
    kt_check(kt_buf_intact(&got), "%s: %s wrote outside, n %u", l->name, what, n);
    call(l->now, a, b, n, a); /* in place */
    kt_check(kt_same_floats(want.data, a, n, &at), "%s: %s in place, n %u, shape %d", l->name, what, n,
             shape);
    kt_buf_free(&want);
    kt_buf_free(&got);
    free(a);
    free(b);
}

static void check_binary(const levels *l, binary_fn call, const char *what)
{
    for (unsigned shape = 0; shape < KT_SHAPES; shape++)
        for (uint32_t n = 1; n <= kt_rounds(4100); n += 1 + (n > 40 ? kt_below(300) : 0))
            compare_binary(l, call, what, shape, n);
}

static void check_rope(const levels *l)
{
    for (uint32_t head_dim = 2; head_dim <= 256; head_dim += 2) {
        const uint32_t heads = 1 + kt_below(5), n = heads * head_dim;
        float *x = kt_alloc(n * sizeof(float)), *cs = kt_alloc(head_dim * sizeof(float));
        kt_fill(kt_below(KT_SHAPES), x, n);
        for (uint32_t i = 0; i < head_dim; i += 2) {
            const double angle = lvr_rng_unit(&kt_rng) * 6.3;
            cs[i] = (float)cos(angle);
            cs[i + 1] = (float)sin(angle);
        }
        kt_buf want = kt_buf_new(n * sizeof(float), 0), got = kt_buf_new(n * sizeof(float), 4);
        memcpy(want.data, x, n * sizeof(float));
        memcpy(got.data, x, n * sizeof(float));
        l->ref->rope(want.data, heads, head_dim, cs);
        l->now->rope(got.data, heads, head_dim, cs);
        size_t at;
        kt_check(kt_same_floats(want.data, got.data, n, &at), "%s: rope, head_dim %u", l->name, head_dim);
        kt_check(kt_buf_intact(&got), "%s: rope wrote outside, head_dim %u", l->name, head_dim);
        kt_buf_free(&want);
        kt_buf_free(&got);
        free(x);
        free(cs);
    }
}

static void check_f32_to_f16(const levels *l)
{
    for (uint32_t n = 1; n < 3000; n += 1 + n / 30) {
        float *x = kt_alloc(n * sizeof(float));
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t bits = (uint32_t)lvr_rng_u64(&kt_rng);
            memcpy(&x[i], &bits, sizeof bits);
        }
        kt_buf want = kt_buf_new(n * 2, 0), got = kt_buf_new(n * 2, 2);
        l->ref->f32_to_f16(x, n, want.data);
        l->now->f32_to_f16(x, n, got.data);
        kt_check(memcmp(want.data, got.data, n * 2) == 0, "%s: f32_to_f16, n %u", l->name, n);
        kt_check(kt_buf_intact(&got), "%s: f32_to_f16 wrote outside, n %u", l->name, n);
        kt_buf_free(&want);
        kt_buf_free(&got);
        free(x);
    }
}

static void check_f16_to_f32(const levels *l)
{
    for (uint32_t n = 1; n < 3000; n += 1 + n / 30) {
        uint16_t *x = kt_alloc(n * sizeof(uint16_t));
        for (uint32_t i = 0; i < n; i++)
            x[i] = (uint16_t)kt_below(0x10000);
        kt_buf want = kt_buf_new(n * 4, 0), got = kt_buf_new(n * 4, 4);
        l->ref->f16_to_f32(x, n, want.data);
        l->now->f16_to_f32(x, n, got.data);
        kt_check(memcmp(want.data, got.data, n * 4) == 0, "%s: f16_to_f32, n %u", l->name, n);
        kt_check(kt_buf_intact(&got), "%s: f16_to_f32 wrote outside, n %u", l->name, n);
        kt_buf_free(&want);
        kt_buf_free(&got);
        free(x);
    }
}

/* ---- softmax ---- */

static void check_max(const levels *l)
{
    for (unsigned shape = 0; shape < KT_SHAPES; shape++)
        for (uint32_t n = 0; n <= kt_rounds(1500); n += 1 + (n > 40 ? kt_below(90) : 0)) {
            float *x = kt_alloc(n * sizeof(float));
            kt_fill(shape, x, n);
            const float want = l->ref->max(x, n), got = l->now->max(x, n);
            size_t at;
            kt_check(kt_same_floats(&want, &got, 1, &at), "%s: max, n %u, shape %d", l->name, n, shape);
            free(x);
        }
}

static void check_softmax_exp(const levels *l)
{
    for (unsigned shape = 0; shape < KT_SHAPES; shape++)
        for (uint32_t n = 1; n <= kt_rounds(1500); n += 1 + (n > 40 ? kt_below(90) : 0)) {
            float *x = kt_alloc(n * sizeof(float));
            kt_fill(shape, x, n);
            const float max = l->ref->max(x, n), scale = kt_uniform(0.01f, 40.0f);
            kt_buf p[2] = {kt_buf_new(n * sizeof(float), 0), kt_buf_new(n * sizeof(float), 4)};
            const float want = l->ref->softmax_exp(x, n, max, scale, p[0].data);
            const float got = l->now->softmax_exp(x, n, max, scale, p[1].data);
            size_t at;
            kt_check(kt_same_floats(&want, &got, 1, &at), "%s: softmax_exp sum, n %u, shape %d", l->name, n,
                     shape);
            kt_check(kt_same_floats(p[0].data, p[1].data, n, &at), "%s: softmax_exp, n %u, shape %d", l->name,
                     n, shape);
            kt_check(kt_buf_intact(&p[1]), "%s: softmax_exp wrote outside, n %u", l->name, n);
            kt_buf_free(&p[0]);
            kt_buf_free(&p[1]);
            free(x);
        }
}

/* ---- attention ---- */

/* Queries of one KV head and `n` rows of its cache, exactly as large, so that a sanitizer sees reads past
 * their ends. */
typedef struct sweep {
    lvr_kv_type type;
    uint32_t n_q, n, head_dim;
    size_t stride; /* of scores and of weights */
    float *q;
    uint8_t *rows;
} sweep;

/* Wild: any bytes, so infinities and NaNs as values and as scales, and the code -128. */
static void sweep_init(sweep *s, kt_shape shape, bool wild)
{
    const size_t row_bytes = lvr_kv_row_bytes(s->type, s->head_dim);
    lvr_kernels c;
    lvr_kernels_init(&c, LVR_CPU_C);
    s->stride = s->n + kt_below(9);
    s->q = kt_alloc((size_t)s->n_q * s->head_dim * sizeof(float));
    s->rows = kt_alloc(s->n * row_bytes);
    kt_fill(KT_NORMAL, s->q, (size_t)s->n_q * s->head_dim);
    float *x = kt_alloc((size_t)s->n * s->head_dim * sizeof(float));
    kt_fill(shape, x, (size_t)s->n * s->head_dim);
    for (size_t j = 0; j < s->n; j++)
        lvr_kv_store_row(&c, s->type, x + j * s->head_dim, s->head_dim, s->rows + j * row_bytes);
    for (size_t i = 0; wild && i < s->n * row_bytes; i++)
        s->rows[i] = (uint8_t)kt_below(256);
    free(x);
}

static void sweep_free(sweep *s)
{
    free(s->q);
    free(s->rows);
}

static void check_floats(const levels *l, const sweep *s, const char *what, const kt_buf *want,
                         const kt_buf *got)
{
    size_t at = 0;
    const size_t n = want->bytes / sizeof(float);
    kt_check(kt_same_floats(want->data, got->data, n, &at),
             "%s: %s %s, %u queries, %u rows of %u: float %zu is %a, not %a", l->name, what,
             lvr_kv_type_name(s->type), s->n_q, s->n, s->head_dim, at, (double)((float *)got->data)[at],
             (double)((float *)want->data)[at]);
    kt_check(kt_buf_intact(got), "%s: %s %s wrote outside, %u queries, %u rows of %u", l->name, what,
             lvr_kv_type_name(s->type), s->n_q, s->n, s->head_dim);
}

/* Both buffers start alike, so that what lies between the scores of two queries is compared, too. */
static void compare_keys(const levels *l, const sweep *s)
{
    const size_t bytes = s->n_q * s->stride * sizeof(float);
    kt_buf scores[2];
    for (int i = 0; i < 2; i++) {
        scores[i] = kt_buf_new(bytes, 4 * i);
        memset(scores[i].data, 0x11, bytes);
        (i == 0 ? l->ref : l->now)
            ->keys[s->type](s->q, s->n_q, s->rows, s->n, s->head_dim, scores[i].data, s->stride);
    }
    check_floats(l, s, "keys", &scores[0], &scores[1]);
    kt_buf_free(&scores[0]);
    kt_buf_free(&scores[1]);
}

static void compare_values(const levels *l, const sweep *s)
{
    const size_t n_p = s->n_q * s->stride, bytes = (size_t)s->n_q * s->head_dim * sizeof(float);
    float *p = kt_alloc(n_p * sizeof(float));
    kt_buf acc[2];
    for (size_t i = 0; i < n_p; i++)
        p[i] = kt_uniform(0, 1);
    for (int i = 0; i < 2; i++) {
        acc[i] = kt_buf_new(bytes, 4 * i);
        memcpy(acc[i].data, s->q, bytes); /* any values */
        (i == 0 ? l->ref : l->now)
            ->values[s->type](p, s->stride, s->n_q, s->rows, s->n, s->head_dim, acc[i].data);
    }
    check_floats(l, s, "values", &acc[0], &acc[1]);
    kt_buf_free(&acc[0]);
    kt_buf_free(&acc[1]);
    free(p);
}

typedef void (*compare_sweep)(const levels *l, const sweep *s);

static void check_sweep(const levels *l, lvr_kv_type type, compare_sweep compare)
{
    for (uint32_t head_dim = 16; head_dim <= 256; head_dim += 16)
        for (uint32_t n_q = 1; n_q <= 17; n_q += 1 + kt_below(3)) {
            sweep s = {.type = type, .n_q = n_q, .n = 1 + kt_below(kt_rounds(400)), .head_dim = head_dim};
            sweep_init(&s, KT_NORMAL, false);
            compare(l, &s);
            sweep_free(&s);
        }
    for (unsigned shape = 0; shape < KT_SHAPES; shape++)
        for (uint32_t head_dim = 48; head_dim <= 128; head_dim += 16) {
            sweep s = {.type = type, .n_q = 1 + kt_below(4), .n = 1 + kt_below(80), .head_dim = head_dim};
            sweep_init(&s, shape, false);
            compare(l, &s);
            sweep_free(&s);
            sweep_init(&s, shape, true);
            compare(l, &s);
            sweep_free(&s);
        }
    for (uint32_t n = 1; n <= 70; n++) { /* every remainder of rows, and no rows past them */
        sweep s = {.type = type, .n_q = 1 + n % 3, .n = n, .head_dim = 64};
        sweep_init(&s, KT_NORMAL, false);
        compare(l, &s);
        sweep_free(&s);
    }
}

/* ---- the walk ---- */

/* A row of the C reference alone equals the row in its batch, whatever the split: the rest is compared to
 * this. */
static void check_reference(const lvr_kernels *c)
{
    const levels l = {c, c, "c"};
    for (unsigned t = 0; t < LVR_WTYPE_SLOTS; t++) {
        product p = {.type = (lvr_wtype)t, .n_out = 50, .n_in = 768, .rows = 9};
        if (lvr_wtype_name(p.type) != NULL)
            compare_product(&l, &p);
    }
}

static unsigned check_level(const lvr_kernels *c, const lvr_kernels *lower, const lvr_kernels *now)
{
    const levels l = {c, now, lvr_cpu_level_name(now->level)};
    unsigned n_new = 0;
#define IF_NEW(fn, call)                                                                                     \
    if (now->fn != lower->fn) {                                                                              \
        call;                                                                                                \
        printf("%s: %s\n", l.name, #fn);                                                                     \
        n_new++;                                                                                             \
    }
    IF_NEW(quantize_row, check_quantize(&l))
    IF_NEW(rmsnorm, check_binary(&l, call_rmsnorm, "rmsnorm"))
    IF_NEW(silu_mul, check_binary(&l, call_silu_mul, "silu_mul"))
    IF_NEW(add, check_binary(&l, call_add, "add"))
    IF_NEW(rope, check_rope(&l))
    IF_NEW(f32_to_f16, check_f32_to_f16(&l))
    IF_NEW(f16_to_f32, check_f16_to_f32(&l))
    IF_NEW(keys[LVR_KV_F16], check_sweep(&l, LVR_KV_F16, compare_keys))
    IF_NEW(keys[LVR_KV_Q8_0], check_sweep(&l, LVR_KV_Q8_0, compare_keys))
    IF_NEW(values[LVR_KV_F16], check_sweep(&l, LVR_KV_F16, compare_values))
    IF_NEW(values[LVR_KV_Q8_0], check_sweep(&l, LVR_KV_Q8_0, compare_values))
    IF_NEW(softmax_exp, check_softmax_exp(&l))
    IF_NEW(max, check_max(&l))
#undef IF_NEW
    for (unsigned t = 0; t < LVR_WTYPE_SLOTS; t++) {
        if (now->matmul[t] == lower->matmul[t])
            continue;
        check_matmul(&l, (lvr_wtype)t);
        printf("%s: matmul %s\n", l.name, lvr_wtype_name((lvr_wtype)t));
        n_new++;
    }
    return n_new;
}

int main(int argc, char **argv)
{
    kt_begin(argc, argv, "test_levels");
    lvr_kernels c, lower, now;
    lvr_kernels_init(&c, LVR_CPU_C);
    check_reference(&c);
    lower = c;
    for (unsigned level = LVR_CPU_C + 1; level < LVR_CPU_LEVELS; level++) {
        if (!lvr_cpu_has((lvr_cpu_level)level))
            continue;
        lvr_kernels_init(&now, (lvr_cpu_level)level);
        kt_check(now.level == (lvr_cpu_level)level, "the ladder stopped at %s",
                 lvr_cpu_level_name(now.level));
        if (kt_wants_level(now.level))
            kt_check(check_level(&c, &lower, &now) > 0, "level %s brings nothing new",
                     lvr_cpu_level_name(now.level));
        lower = now;
    }
    return kt_end();
}
