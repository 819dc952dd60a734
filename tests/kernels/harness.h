/*
 * What the kernel tests share, in the manner of checkasm: seeded inputs with adversarial shapes among them,
 * output buffers with guard bytes on both sides, and comparison bit for bit (any NaN counts as any other: the
 * contract does not fix payloads).
 */
#ifndef LVR_TESTS_KERNELS_HARNESS_H
#define LVR_TESTS_KERNELS_HARNESS_H

#include "common/rng.h"
#include "engine/kernels/kernels.h"

/*
 * Arguments: [--quick] [--level LEVEL] [SEED]. The seed is else LVR_TEST_SEED, else 1; it is printed, so that
 * a failure can be repeated. Ends the program with 77, saying why, if the machine does not have the level
 * asked for.
 */
void kt_begin(int argc, char **argv, const char *name);
bool kt_wants_level(lvr_cpu_level level); /* all, without --level */
uint32_t kt_rounds(uint32_t n);           /* n, or an eighth of it with --quick (emulators are slow) */
int kt_end(void);                         /* exit status */
extern lvr_rng kt_rng;

/* Counts and prints a failure (the first few of a program); true if `ok`. */
bool kt_check(bool ok, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Memory whose surroundings are watched. `bytes` may be 0; starts at a 64-byte boundary plus `skew`. */
typedef struct kt_buf {
    unsigned char *base;
    void *data;
    size_t bytes, total;
} kt_buf;
kt_buf kt_buf_new(size_t bytes, size_t skew);
bool kt_buf_intact(const kt_buf *b); /* nothing outside the data was written */
void kt_buf_free(kt_buf *b);

/* malloc'd exactly as large as asked, so that a sanitizer sees a read past the end. Ends the program if there
 * is no memory. */
void *kt_alloc(size_t bytes);

bool kt_same_floats(const float *a, const float *b, size_t n, size_t *ret_at);

uint32_t kt_below(uint32_t n);
float kt_uniform(float lo, float hi);

/* Shapes of rows of floats. */
typedef enum kt_shape {
    KT_NORMAL,    /* standard normal */
    KT_FLAT,      /* +c and -c only: every quantised value is +-127 */
    KT_ONE_SIGN,  /* 64 times -c, 64 times +c: the largest sums of quantised values */
    KT_ZERO,      /* +0 and -0 */
    KT_SUBNORMAL, /* down to the least float */
    KT_TINY,      /* blocks from 2^-117 to 2^-123: quantisation gives up below 2^-120 */
    KT_HUGE,      /* up to the largest float */
    KT_OUTLIER,   /* one value outweighs the block */
    KT_TIES,      /* k + 1/2 with a largest magnitude of 127: ties of rounding */
    KT_FINITE_SHAPES,
    KT_SPECIAL = KT_FINITE_SHAPES, /* infinities and NaNs among normal values */
    KT_SHAPES
} kt_shape;
void kt_fill(kt_shape shape, float *x, size_t n);

/* Shapes of GGUF rows. */
typedef enum kt_weights {
    KW_RANDOM,
    KW_LOWEST,     /* every code the least; Q6_K: every scale -128 */
    KW_HIGHEST,    /* every code the greatest; K types: every bit of the scales set, too */
    KW_ZERO,       /* zero weights under a non-zero scale (Q5_0: all bits zero) */
    KW_EXTREMES,   /* least and greatest mixed */
    KW_SUBNORMAL,  /* subnormal scales or weights */
    KW_HUGE,       /* largest finite scales or weights */
    KW_WILD_SCALE, /* scales (or half weights) of any 16 bits: infinities, NaNs, zeros, negatives */
    KW_SHAPES
} kt_weights;
void kt_fill_weights(lvr_wtype t, kt_weights shape, uint8_t *gguf_rows, size_t bytes);

#endif
