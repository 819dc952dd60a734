#include "common/rng.h"
#include "common/stats.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

Test(rng, matches_the_published_splitmix64)
{
    /* splitmix64.c of https://prng.di.unimi.it seeded with 1234567: state advances by the golden gamma. */
    const uint64_t expected[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u};
    uint64_t state = 1234567;
    for (size_t i = 0; i < 3; i++) {
        state += UINT64_C(0x9e3779b97f4a7c15);
        cr_assert_eq(lvr_mix64(state), expected[i]);
    }
}

Test(rng, matches_the_published_xoshiro256ss)
{
    lvr_rng rng = {.s = {1, 2, 3, 4}};
    const uint64_t expected[] = {11520u, 0u, 1509978240u, 1215971899390074240u, 1216172134540287360u};
    for (size_t i = 0; i < 5; i++)
        cr_assert_eq(lvr_rng_u64(&rng), expected[i]);
}

Test(rng, streams_are_fixed_for_ever)
{
    lvr_rng rng;
    lvr_rng_init(&rng, 42, "arrivals");
    const uint64_t expected[] = {UINT64_C(11533411338644798864), UINT64_C(15548015233392429042),
                                 UINT64_C(12479280726953979383)};
    for (size_t i = 0; i < 3; i++)
        cr_assert_eq(lvr_rng_u64(&rng), expected[i]);
    cr_assert_eq(lvr_hash_unit(42, 7, 1000), 0x1.7f931e84f1bfp-3);
}

Test(rng, streams_differ_by_name_and_seed)
{
    lvr_rng a, b, c;
    lvr_rng_init(&a, 1, "x");
    lvr_rng_init(&b, 1, "y");
    lvr_rng_init(&c, 2, "x");
    const uint64_t va = lvr_rng_u64(&a), vb = lvr_rng_u64(&b), vc = lvr_rng_u64(&c);
    cr_assert(va != vb && va != vc && vb != vc);
}

Test(rng, below_is_uniform_and_in_range)
{
    lvr_rng rng;
    lvr_rng_init(&rng, 3, "below");
    unsigned counts[7] = {0};
    for (int i = 0; i < 70000; i++)
        counts[lvr_rng_below(&rng, 7)]++;
    for (int i = 0; i < 7; i++)
        cr_assert(counts[i] > 9500 && counts[i] < 10500, "%u", counts[i]);
    cr_assert_eq(lvr_rng_below(&rng, 1), 0);
    for (int i = 0; i < 1000; i++)
        cr_assert_lt(lvr_rng_below(&rng, UINT64_C(0x8000000000000001)), UINT64_C(0x8000000000000001));
}

Test(rng, unit_and_normal_have_the_right_moments)
{
    enum { N = 100000 };
    static double u[N], z[N], h[N];
    lvr_rng rng;
    lvr_rng_init(&rng, 5, "moments");
    for (int i = 0; i < N; i++) {
        u[i] = lvr_rng_unit(&rng);
        z[i] = lvr_rng_normal(&rng);
        h[i] = lvr_hash_unit(9, (uint64_t)i / 100, (uint64_t)i % 100);
        cr_assert(u[i] >= 0 && u[i] < 1 && h[i] >= 0 && h[i] < 1);
    }
    cr_assert_float_eq(lvr_mean(u, N), 0.5, 0.005);
    cr_assert_float_eq(lvr_stddev(u, N), sqrt(1.0 / 12), 0.005);
    cr_assert_float_eq(lvr_mean(h, N), 0.5, 0.005);
    cr_assert_float_eq(lvr_stddev(h, N), sqrt(1.0 / 12), 0.005);
    cr_assert_float_eq(lvr_mean(z, N), 0, 0.02);
    cr_assert_float_eq(lvr_stddev(z, N), 1, 0.02);
}

Test(rng, hash_unit_depends_on_each_key)
{
    const double base = lvr_hash_unit(1, 2, 3);
    cr_assert_eq(lvr_hash_unit(1, 2, 3), base);
    cr_assert_neq(lvr_hash_unit(2, 2, 3), base);
    cr_assert_neq(lvr_hash_unit(1, 3, 2), base);
    cr_assert_neq(lvr_hash_unit(1, 2, 4), base);
}
