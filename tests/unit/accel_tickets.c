/* The accelerator interface without a model: opening, tickets, delays, closing. */
#include "common/clock.h"
#include "engine/accel/accel.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/resource.h>

static const char *const names[] = {"null", "matrix"};

static lvr_kernels kernels;

static lvr_accel *open_accel(const char *name, uint64_t launch_ns, uint64_t sync_ns)
{
    lvr_accel *a = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_kernels_init(&kernels, LVR_CPU_C);
    const lvr_accel_config c = {
        .name = name, .kernels = &kernels, .launch_ns = launch_ns, .sync_ns = sync_ns};
    cr_assert_eq(lvr_accel_open(&c, &a, &err), LVR_OK, "%s", err.msg);
    return a;
}

static lvr_accel_ticket submit(lvr_accel *a)
{
    lvr_accel_ticket t = 0;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_accel_submit(a, NULL, 0, NULL, &t, &err), LVR_OK, "%s", err.msg);
    return t;
}

Test(accel_tickets, capabilities)
{
    for (int i = 0; i < 2; i++) {
        lvr_accel *a = open_accel(names[i], 0, 0);
        const lvr_accel_caps *caps = lvr_accel_get_caps(a);
        cr_assert_str_eq(caps->name, names[i]);
        cr_assert(caps->exact && caps->zero_copy && caps->engine[0]);
        cr_assert_eq(caps->async, i == 1);
        cr_assert_gt(caps->n_buckets, 0);
        cr_assert_eq(caps->buckets[0], 16, "a matrix unit's cost is flat up to a tile");
        for (uint32_t b = 1; b < caps->n_buckets; b++)
            cr_assert_gt(caps->buckets[b], caps->buckets[b - 1]);
        cr_assert_gt(caps->max_inflight, 1);
        cr_assert(!caps->fallback || caps->reason[0], "a fallback says why");
        cr_assert_eq(caps->fallback, i == 1 && !lvr_cpu_has(LVR_CPU_AMX));
        lvr_accel_close(a);
    }
}

Test(accel_tickets, refusals)
{
    lvr_accel *a = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_accel_config c = {.name = "matrx", .kernels = &kernels};
    cr_assert_eq(lvr_accel_open(&c, &a, &err), LVR_ERR_CONFIG);
    cr_assert(strstr(err.msg, "matrix'?"), "did you mean: %s", err.msg);
    c.name = "toaster";
    cr_assert_eq(lvr_accel_open(&c, &a, &err), LVR_ERR_CONFIG);
    cr_assert(strstr(err.msg, lvr_accel_names) && !strstr(err.msg, "did you mean"), "%s", err.msg);
    c.name = "null";
    c.launch_ns = LVR_ACCEL_MAX_DELAY_NS + 1;
    cr_assert_eq(lvr_accel_open(&c, &a, &err), LVR_ERR_CONFIG);
    c.launch_ns = 0;
    c.sync_ns = UINT64_MAX;
    cr_assert_eq(lvr_accel_open(&c, &a, &err), LVR_ERR_CONFIG);
    cr_assert_null(a);
    lvr_accel_close(NULL);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* Under a limit of the address space the stack grows no further either: what it may need is touched first. */
static void __attribute__((noinline)) touch_stack(void)
{
    volatile uint8_t room[256 << 10];
    for (size_t i = 0; i < sizeof room; i += 1024)
        room[i] = 1;
}
#endif

/* No address space for another thread's stack. */
Test(accel_tickets, no_thread)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const struct rlimit none = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    lvr_accel *a = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_kernels_init(&kernels, LVR_CPU_C);
    const lvr_accel_config c = {.name = "matrix", .kernels = &kernels};
    touch_stack();
    cr_assert_eq(setrlimit(RLIMIT_AS, &none), 0);
    cr_assert_eq(lvr_accel_open(&c, &a, &err), LVR_ERR_IO, "%s", err.msg);
    cr_assert(strstr(err.msg, "thread"), "%s", err.msg);
    cr_assert_null(a);
#endif
}

Test(accel_tickets, in_order_and_timed)
{
    for (int i = 0; i < 2; i++) {
        lvr_accel *a = open_accel(names[i], 0, 0);
        const uint32_t n = lvr_accel_get_caps(a)->max_inflight;
        uint64_t last_end = 0;
        for (int rep = 0; rep < 300; rep++) {
            lvr_accel_ticket first = 0;
            lvr_accel_times t;
            for (uint32_t k = 0; k < n; k++) {
                const lvr_accel_ticket ticket = submit(a);
                first = k == 0 ? ticket : first;
                cr_assert_eq(ticket, first + k);
            }
            cr_assert(lvr_accel_wait(a, first + n - 1, UINT64_MAX, &t));
            for (uint32_t k = 0; k < n; k++) {
                cr_assert(lvr_accel_poll(a, first + k, &t), "in order: the last is done, so all are");
                cr_assert(last_end <= t.start_ns && t.submit_ns <= t.start_ns && t.start_ns <= t.end_ns);
                last_end = t.end_ns;
            }
        }
        lvr_accel_close(a);
    }
}

Test(accel_tickets, no_more_than_max_inflight)
{
    lvr_accel *a = open_accel("matrix", 20000000, 0);
    const uint32_t n = lvr_accel_get_caps(a)->max_inflight;
    lvr_accel_ticket ticket = 0;
    lvr_error err = LVR_ERROR_INIT;
    for (uint32_t k = 0; k < n; k++)
        ticket = submit(a);
    cr_assert_eq(lvr_accel_submit(a, NULL, 0, NULL, &ticket, &err), LVR_ERR_INVARIANT);
    cr_assert_eq(ticket, n, "untouched");
    /* Closing does not wait for those that have not started: 16 times 20 ms. */
    const uint64_t t0 = lvr_now_ns();
    lvr_accel_close(a);
    cr_assert_lt(lvr_now_ns() - t0, 300000000u);
}

Test(accel_tickets, delays_are_kept)
{
    for (int i = 0; i < 2; i++) {
        lvr_accel *a = open_accel(names[i], 3000000, 2000000);
        lvr_accel_times t = {0};
        const lvr_accel_ticket ticket = submit(a);
        if (i == 1) {
            cr_assert_not(lvr_accel_poll(a, ticket, &t), "it has not even started");
            cr_assert_not(lvr_accel_wait(a, ticket, 1000, &t), "times out");
        }
        cr_assert(lvr_accel_wait(a, ticket, UINT64_MAX, &t));
        const uint64_t seen = lvr_now_ns();
        cr_assert_geq(t.start_ns, t.submit_ns + 3000000);
        cr_assert_geq(seen, t.end_ns + 2000000);
        cr_assert(lvr_accel_poll(a, ticket, &t));
        lvr_accel_close(a);
    }
}

/* The sync delay counts for poll too, and a wait that ends within it says that the ticket is not done. */
Test(accel_tickets, sync_delay_of_poll)
{
    lvr_accel *a = open_accel("null", 0, 30000000);
    lvr_accel_times t = {0};
    const lvr_accel_ticket ticket = submit(a);
    cr_assert_not(lvr_accel_poll(a, ticket, &t));
    cr_assert_not(lvr_accel_wait(a, ticket, 1000000, &t));
    cr_assert_eq(t.end_ns, 0, "untouched");
    cr_assert(lvr_accel_wait(a, ticket, 60000000000u, &t));
    lvr_accel_close(a);
}

static uint64_t cpu_ns(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000u +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000u;
}

/* Neither an idle unit nor a long delay burns processor time. */
Test(accel_tickets, waiting_uses_no_cpu)
{
    lvr_accel *a = open_accel("matrix", 150000000, 150000000);
    lvr_accel_times t;
    lvr_sleep_until_ns(lvr_now_ns() + 5000000);
    const uint64_t c0 = cpu_ns();
    const lvr_accel_ticket ticket = submit(a);
    cr_assert(lvr_accel_wait(a, ticket, UINT64_MAX, &t));
    lvr_sleep_until_ns(lvr_now_ns() + 100000000);
    const uint64_t used = cpu_ns() - c0;
    cr_assert_lt(used, 60000000u, "%llu ns of processor time in 400 ms", (unsigned long long)used);
    lvr_accel_close(a);
}
