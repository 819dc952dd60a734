#include "common/clock.h"

#include <time.h>

#define NS_PER_S UINT64_C(1000000000)

/* The kernel's default timer slack (50 us) and a little more: a sleep may end that late. */
#define SPIN_NS UINT64_C(60000)

static uint64_t read_clock(clockid_t id)
{
    struct timespec ts = {0};
    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t lvr_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC_RAW);
}

uint64_t lvr_realtime_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

uint64_t lvr_boottime_ns(void)
{
    return read_clock(CLOCK_BOOTTIME);
}

static void sleep_ns(uint64_t ns)
{
    const struct timespec ts = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    nanosleep(&ts, NULL);
}

void lvr_sleep_until_ns(uint64_t deadline_ns)
{
    for (;;) {
        const uint64_t now = lvr_now_ns();
        if (now >= deadline_ns)
            return;
        const uint64_t left = deadline_ns - now;
        if (left <= SPIN_NS)
            continue;
        /* nanosleep runs on the NTP-slewed clock, which may lag the raw one by 500 ppm: approach in steps. */
        const uint64_t drift = left / 1024;
        sleep_ns(left - (drift > SPIN_NS ? drift : SPIN_NS));
    }
}
