/* The DRAM plan: arithmetic by hand, and against trying every number of resident layers. */
#include "common/rng.h"
#include "engine/budget.h"

#include <criterion/criterion.h>
#include <string.h>

#define MIB (1024u * 1024u)

static lvr_geometry even_geometry(uint32_t n_layers, uint64_t layer_bytes, uint32_t ring)
{
    lvr_geometry g = {.n_layers = n_layers, .slice_bytes = 4096, .ring_slots = ring};
    for (uint32_t l = 0; l < n_layers; l++)
        g.layer_bytes[l] = layer_bytes;
    return g;
}

static uint32_t n_resident(const lvr_geometry *g)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < g->n_layers; l++)
        n += g->resident[l];
    return n;
}

Test(budget_plan, as_many_layers_as_fit)
{
    lvr_geometry g = even_geometry(10, MIB, 2);
    lvr_budget_parts parts = {.draft_bytes = MIB,
                              .embed_bytes = MIB,
                              .head_bytes = MIB,
                              .kv_target_bytes = MIB,
                              .workspace_bytes = MIB};
    cr_assert_eq(lvr_budget_plan(&g, LVR_RESIDENT_SPREAD, 11 * MIB, &parts, NULL), LVR_OK);
    cr_assert_eq(n_resident(&g), 4, "5 MiB of other parts, 2 of ring, 4 layers");
    cr_assert_eq(parts.layers_bytes, 4 * MIB);
    cr_assert_eq(parts.ring_bytes, 2 * MIB);
    cr_assert_eq(parts.total_bytes, 11 * MIB);
}

/* One byte less is a layer less. */
Test(budget_plan, exact_to_the_byte)
{
    lvr_geometry g = even_geometry(10, MIB, 2);
    lvr_budget_parts parts = {.draft_bytes = 5 * MIB};
    cr_assert_eq(lvr_budget_plan(&g, LVR_RESIDENT_SPREAD, 11 * MIB - 1, &parts, NULL), LVR_OK);
    cr_assert_eq(n_resident(&g), 3);
}

Test(budget_plan, everything_resident_needs_no_ring)
{
    lvr_geometry g = even_geometry(10, MIB, 4);
    lvr_budget_parts parts = {.draft_bytes = MIB};
    cr_assert_eq(lvr_budget_plan(&g, LVR_RESIDENT_SPREAD, 11 * MIB, &parts, NULL), LVR_OK);
    cr_assert_eq(n_resident(&g), 10);
    cr_assert_eq(parts.ring_bytes, 0);
    cr_assert_eq(parts.total_bytes, 11 * MIB);
}

Test(budget_plan, too_small_says_what_is_needed)
{
    lvr_geometry g = even_geometry(10, MIB, 2);
    const lvr_geometry before = g;
    lvr_budget_parts parts = {.draft_bytes = 2 * MIB,
                              .embed_bytes = MIB,
                              .head_bytes = MIB,
                              .kv_target_bytes = MIB,
                              .kv_draft_bytes = MIB,
                              .workspace_bytes = MIB};
    const lvr_budget_parts parts_before = parts;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_budget_plan(&g, LVR_RESIDENT_SPREAD, 9 * MIB - 1, &parts, &err), LVR_ERR_BUDGET);
    cr_assert(strstr(err.msg, "9437184 bytes"), "the least feasible budget: %s", err.msg);
    static const char *const words[] = {"draft 2.0",    "embeddings 1.0",       "head 1.0",
                                        "KV cache 1.0", "draft's KV cache 1.0", "workspace 1.0",
                                        "ring 2.0",     "--dram-budget"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        cr_assert(strstr(err.msg, words[i]), "expected \"%s\" in: %s", words[i], err.msg);
    cr_assert_arr_eq(&g, &before, sizeof g, "untouched on failure");
    cr_assert_arr_eq(&parts, &parts_before, sizeof parts, "untouched on failure");
    cr_assert_eq(lvr_budget_plan(&g, LVR_RESIDENT_SPREAD, 9 * MIB, &parts, NULL), LVR_OK,
                 "the stated budget is enough");
    cr_assert_eq(n_resident(&g), 0);
}

/* A ring of more slots than there are layers: the least plan is the one that streams nothing. */
Test(budget_plan, least_plan_may_be_all_resident)
{
    lvr_geometry g = even_geometry(2, MIB, 8);
    lvr_budget_parts parts = {0};
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_budget_plan(&g, LVR_RESIDENT_SPREAD, MIB, &parts, &err), LVR_ERR_BUDGET);
    cr_assert(strstr(err.msg, "2097152 bytes"), "%s", err.msg);
    cr_assert_eq(lvr_budget_plan(&g, LVR_RESIDENT_SPREAD, 2 * MIB, &parts, NULL), LVR_OK);
    cr_assert_eq(n_resident(&g), 2);
}

Test(budget_plan, sizes_that_overflow_do_not_fit)
{
    lvr_geometry g = even_geometry(3, UINT64_MAX / 2, 64);
    lvr_budget_parts parts = {.draft_bytes = UINT64_MAX - 5};
    cr_assert_eq(lvr_budget_plan(&g, LVR_RESIDENT_SPREAD, UINT64_MAX - 1, &parts, NULL), LVR_ERR_BUDGET);
}

/* Layers of different sizes: the plan fits, and none with more resident layers does; what is least is so. */
Test(budget_plan, random_layers_against_brute_force)
{
    lvr_rng rng;
    lvr_rng_init(&rng, 1, "budget");
    for (int round = 0; round < 2000; round++) {
        lvr_geometry g =
            even_geometry(1 + (uint32_t)lvr_rng_below(&rng, 20), 0, 1 + (uint32_t)lvr_rng_below(&rng, 4));
        uint64_t sum = 0;
        for (uint32_t l = 0; l < g.n_layers; l++)
            sum += g.layer_bytes[l] = 4096 * (1 + lvr_rng_below(&rng, 50));
        const lvr_budget_parts inputs = {.draft_bytes = lvr_rng_below(&rng, 100000),
                                         .kv_target_bytes = lvr_rng_below(&rng, 100000)};
        const lvr_residency where = (lvr_residency)lvr_rng_below(&rng, 3);
        const uint64_t budget = lvr_rng_below(&rng, 2 * sum + 200000);
        lvr_budget_parts parts = inputs;
        const bool ok = lvr_budget_plan(&g, where, budget, &parts, NULL) == LVR_OK;
        uint64_t least = UINT64_MAX;
        uint32_t best = 0;
        bool any = false;
        for (uint32_t n = 0; n <= g.n_layers; n++) {
            lvr_geometry trial = g;
            lvr_budget_parts p = inputs;
            lvr_geometry_set_resident(&trial, (double)n / g.n_layers, where);
            lvr_budget_sum(&trial, &p);
            least = p.total_bytes < least ? p.total_bytes : least;
            if (p.total_bytes <= budget) {
                any = true;
                best = n;
            }
        }
        cr_assert_eq(ok, any);
        cr_assert_eq(lvr_budget_least(&g, where, &inputs).total_bytes, least);
        if (!ok)
            continue;
        cr_assert_eq(n_resident(&g), best);
        cr_assert_leq(parts.total_bytes, budget);
    }
}

/* ---- what is left in the machine or the container ---- */

static lvr_memory_limit room_of(uint64_t limit, uint64_t used)
{
    return (lvr_memory_limit){.limit_bytes = limit,
                              .used_bytes = used,
                              .room_bytes = limit - used,
                              .source = "/groups/box/memory.max"};
}

Test(budget_plan, room)
{
    const lvr_memory_limit unknown = {.room_bytes = UINT64_MAX}, none = room_of(MIB, 0);
    const lvr_memory_limit some = room_of(200 * MIB, 36 * MIB);
    const lvr_budget_parts fits = {.total_bytes = 100 * MIB}, over = {.total_bytes = 100 * MIB + 1};
    cr_assert_eq(lvr_budget_of_room(&unknown), UINT64_MAX);
    cr_assert_eq(lvr_budget_of_room(&none), 0);
    cr_assert_eq(lvr_budget_of_room(&some), 100 * MIB, "64 MiB are the program's");
    cr_assert_eq(lvr_budget_check_room(&over, 0, &unknown, NULL), LVR_OK);
    cr_assert_eq(lvr_budget_check_room(&fits, 0, &some, NULL), LVR_OK);
    cr_assert_eq(lvr_budget_check_room(&over, 0, &some, NULL), LVR_ERR_BUDGET);
}

static void expect_words(const char *msg, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        cr_assert(strstr(msg, words[i]), "expected \"%s\" in: %s", words[i], msg);
}

Test(budget_plan, too_little_room_says_what_to_do)
{
    static const char *const can[] = {"164.0 MiB are left",  "/groups/box/memory.max says 200.0 MiB",
                                      "36.0 MiB are in use", "9437184 bytes",
                                      "layers 9000.0",       "--dram-budget auto, or 100.0 MiB"};
    static const char *const cannot[] = {"/groups/box/memory.max", "9437184 bytes", "--context", "q8_0"};
    const lvr_memory_limit some = room_of(200 * MIB, 36 * MIB), little = room_of(20 * MIB, 0);
    const lvr_budget_parts parts = {.layers_bytes = UINT64_C(9000) * MIB,
                                    .total_bytes = UINT64_C(9000) * MIB};
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_budget_check_room(&parts, 9 * MIB, &some, &err), LVR_ERR_BUDGET);
    expect_words(err.msg, can, sizeof can / sizeof *can);
    cr_assert_eq(lvr_budget_check_room(&parts, 9 * MIB, &little, &err), LVR_ERR_BUDGET);
    expect_words(err.msg, cannot, sizeof cannot / sizeof *cannot);
    cr_assert_null(strstr(err.msg, "auto"), "that would not help: %s", err.msg);
}

/* Every part is in the total, and the text of all parts at their largest fits. */
Test(budget_plan, every_part_counts)
{
    const lvr_geometry g = even_geometry(1, 0, 1);
    lvr_budget_parts parts = {1, 2, 4, 8, 16, 32, 0, 0, 0};
    char text[LVR_BUDGET_TEXT_BYTES];
    lvr_budget_sum(&g, &parts);
    cr_assert_eq(parts.total_bytes, 63);
    lvr_budget_parts most;
    memset(&most, 0xff, sizeof most);
    lvr_budget_text(&most, text);
    cr_assert_str_eq(text + strlen(text) - 4, " MiB");
}
