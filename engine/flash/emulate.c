/* Pacing: a completion is handed out no earlier than the emulated device would. Every request's deadline is
 * absolute, fixed when it is submitted, and no thread stands between it and the consumer, who sleeps until
 * the deadline itself: a late wake-up delays one delivery and leaves the schedule as it was. */
#include "engine/flash/reader_internal.h"

#include "common/clock.h"
#include <sys/prctl.h>
#include <time.h>

#define NS_PER_S UINT64_C(1000000000)

/* Starts never decrease, so a lane that is busy past this request's start was busy when it started. */
static uint32_t lanes_busy_at(const lvr_flash_state *state, uint32_t depth, uint64_t t_ns)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < depth; i++)
        n += state->lane_free_ns[i] > t_ns;
    return n;
}

void lvr_flash_emulate_submit(lvr_flash *f, lvr_flash_slot *slot)
{
    if (!f->emulate)
        return;
    slot->emulated = lvr_flash_admit(&f->emulated_state, &f->emulated, slot->t_submit_ns, slot->bytes);
    slot->emulated_queue_depth =
        lanes_busy_at(&f->emulated_state, f->emulated.depth, slot->emulated.start_ns);
}

void lvr_flash_emulate_finish(const lvr_flash *f, lvr_flash_slot *slot)
{
    slot->t_deliver_ns = slot->t_end_ns;
    if (f->emulate && slot->emulated.end_ns > slot->t_end_ns)
        slot->t_deliver_ns = slot->emulated.end_ns;
}

/* The condition variable's clock is slewed by NTP, ours is not: over one wait they part by 0.05 % of it at
 * most, and the caller looks at our clock again afterwards. */
static struct timespec monotonic_deadline(uint64_t left_ns)
{
    struct timespec ts = {0};
    clock_gettime(CLOCK_MONOTONIC, &ts);
    const uint64_t ns = (uint64_t)ts.tv_nsec + left_ns % NS_PER_S;
    ts.tv_sec += (time_t)(left_ns / NS_PER_S + ns / NS_PER_S);
    ts.tv_nsec = (long)(ns % NS_PER_S);
    return ts;
}

/* The thread is the caller's, so its timer slack (50 us by default, too coarse here) is put back. */
static void timed_wait(lvr_flash *f, uint64_t left_ns)
{
    const int slack_ns = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
    const struct timespec deadline = monotonic_deadline(left_ns);
    pthread_cond_timedwait(&f->delivered, &f->lock, &deadline);
    if (slack_ns > 0)
        prctl(PR_SET_TIMERSLACK, (unsigned long)slack_ns, 0, 0, 0);
}

void lvr_flash_sleep(lvr_flash *f, uint64_t deadline_ns)
{
    const uint64_t now = lvr_now_ns();
    if (now >= deadline_ns)
        return;
    f->waiting_until_ns = deadline_ns;
    if (deadline_ns == UINT64_MAX)
        pthread_cond_wait(&f->delivered, &f->lock);
    else
        timed_wait(f, deadline_ns - now);
    f->waiting_until_ns = 0;
}
