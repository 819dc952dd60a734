/* A request's figures. */
#include "engine/decode_internal.h"

#include "common/minmax.h"

void lvr_run_close_stats(lvr_run *r, uint64_t now)
{
    lvr_run_stats *st = &r->stats;
    st->n_prompt = r->n_prompt;
    st->n_prefilled = lvr_min_u32(r->s->pair.target.kv.n_cached, r->n_prompt - 1);
    st->n_tokens = r->n_tokens;
    st->wall_ns = now - r->begin_ns;
    const bool decoded = r->decode0_ns > 0; /* not if it ended in its prompt */
    st->prefill_ns = (decoded ? r->decode0_ns : now) - r->begin_ns;
    st->decode_ns = decoded ? now - r->decode0_ns : 0;
    st->ttft_ns = r->first_token_ns ? r->first_token_ns - r->begin_ns : 0;
    st->decode_compute_ns = decoded ? st->compute_ns - r->prefill_compute_ns : 0;
    if (!r->s->staging)
        return;
    const lvr_staging_stats io = lvr_staging_get_stats(r->s->staging);
    st->io_wait_ns = io.wait_ns - r->staging0.wait_ns;
    st->io_busy_ns = io.busy_ns - r->staging0.busy_ns;
    st->decode_io_busy_ns = decoded ? st->io_busy_ns - r->prefill_io_busy_ns : 0;
    if (r->s->geometry.io_mode == LVR_IO_PIPELINED && st->wall_ns > st->io_busy_ns)
        st->io_idle_ns = st->wall_ns - st->io_busy_ns;
    st->late_reads = io.late - r->staging0.late;
}

void lvr_run_stats_add(lvr_run_stats *sum, const lvr_run_stats *one)
{
    sum->n_prompt += one->n_prompt;
    sum->n_prefilled += one->n_prefilled;
    sum->n_tokens += one->n_tokens;
    sum->rounds += one->rounds;
    sum->drafted_rows += one->drafted_rows;
    sum->verified_rows += one->verified_rows;
    sum->pruned_rows += one->pruned_rows;
    sum->accepted += one->accepted;
    sum->draft_steps += one->draft_steps;
    sum->bytes_read += one->bytes_read;
    sum->prefill_ns += one->prefill_ns;
    sum->decode_ns += one->decode_ns;
    sum->ttft_ns += one->ttft_ns;
    sum->wall_ns += one->wall_ns;
    sum->io_wait_ns += one->io_wait_ns;
    sum->io_busy_ns += one->io_busy_ns;
    sum->io_idle_ns += one->io_idle_ns;
    sum->compute_ns += one->compute_ns;
    sum->draft_ns += one->draft_ns;
    sum->head_ns += one->head_ns;
    sum->plan_ns += one->plan_ns;
    sum->score_ns += one->score_ns;
    sum->commit_ns += one->commit_ns;
    sum->decode_io_busy_ns += one->decode_io_busy_ns;
    sum->decode_compute_ns += one->decode_compute_ns;
    sum->late_reads += one->late_reads;
    sum->npu_ns += one->npu_ns;
    sum->npu_wait_ns += one->npu_wait_ns;
    sum->npu_tickets += one->npu_tickets;
    sum->stop = one->stop;
}
