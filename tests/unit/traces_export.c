/* The summary as JSON, and CSV. */
#include "common/buf.h"
#include "common/fs.h"
#include "common/yaml.h"
#include "tests/unit/traces_fixture.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

TestSuite(trace_export, .init = fixture_setup, .fini = fixture_teardown);

static void record_small(void)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, true, &lane);
    const lvr_rec_tree tree = {
        .request = 1, .parent = -1, .p_draft = 0.1f, .target_token = -1, .p_target = NAN};
    const lvr_rec_bench bench = {
        .kind = 1, .bytes = 4096, .depth = 4, .n = 3, .mean_ns = 0.1, .p50_ns = 1e300};
    fixture_put_rounds(lane, 1, 0, 2, true);
    lvr_trace_put(lane, LVR_STREAM_TREES, &tree);
    lvr_trace_put(lane, LVR_STREAM_BENCH, &bench);
    fixture_close(w, true);
}

static void expect_csv(const char *dir, const char *name, const char *text)
{
    char path[256];
    lvr_buf buf = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    cr_assert_eq(lvr_read_file(path, 1 << 20, &buf, &err), LVR_OK, "%s", err.msg);
    cr_assert_str_eq(buf.data, text);
    lvr_buf_free(&buf);
}

Test(trace_export, csv_has_units_names_and_quotes)
{
    char dir[128], path[256];
    lvr_error err = LVR_ERROR_INIT;
    record_small();
    lvr_trace *t = fixture_open();
    snprintf(dir, sizeof dir, "%s/a/b", fixture_dir);
    cr_assert_eq(lvr_trace_export_csv(t, dir, &err), LVR_OK, "%s", err.msg);
    expect_csv(dir, "requests.csv",
               "id,domain,prompt_hash,n_prompt [tokens],n_output [tokens],t_arrival [ns],t_first_token "
               "[ns],t_done [ns]\n"
               "1,\"code, \"\"quoted\"\"\",77,1,4,1,2,3\n");
    expect_csv(
        dir, "trees.csv",
        "request,pos [tokens],node,parent,depth,rank,token,p_draft,target_token,p_target,on_path,expanded\n"
        "1,0,0,-1,0,0,0,0.100000001,-1,NaN,0,0\n");
    expect_csv(dir, "bench.csv",
               "kind,op,unit,rows [rows],bytes [bytes],depth,n,mean [ns],p50 [ns],p90 [ns],p99 [ns]\n"
               "flash,draft,cpu,0,4096,4,3,0.1,1e+300,0,0\n");
    snprintf(path, sizeof path, "%s/device_memory.csv", dir);
    cr_assert_eq(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/draft_topk.csv", dir);
    cr_assert_neq(access(path, F_OK), 0, "no rows, no file");
    snprintf(path, sizeof path, "%s/trees.csv.tmp", dir);
    cr_assert_neq(access(path, F_OK), 0);
    lvr_trace_close(t);
}

Test(trace_export, a_file_in_the_way_is_a_message)
{
    lvr_error err = LVR_ERROR_INIT;
    record_small();
    lvr_trace *t = fixture_open();
    cr_assert_eq(lvr_trace_export_csv(t, fixture_path, &err), LVR_ERR_IO);
    cr_assert_not_null(strstr(err.msg, fixture_path));
    lvr_trace_close(t);
}

/* JSON is YAML: the project's own strict reader checks its form. */
Test(trace_export, the_summary_is_json)
{
    lvr_buf out = LVR_BUF_INIT;
    lvr_yaml_doc *doc = NULL;
    lvr_error err = LVR_ERROR_INIT;
    uint64_t n = 0;
    bool complete = false;
    const char *kind = NULL;
    const lvr_yaml_node *streams = NULL, *rounds = NULL;
    record_small();
    lvr_trace *t = fixture_open();
    cr_assert_eq(lvr_trace_info(t, true, &out, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_yaml_load_mem("info", out.data, out.len, &doc, &err), LVR_OK, "%s", err.msg);
    const lvr_yaml_node *root = lvr_yaml_root(doc);
    cr_assert_eq(lvr_yaml_get_bool(root, "complete", &complete, &err), LVR_OK, "%s", err.msg);
    cr_assert(complete);
    cr_assert_eq(lvr_yaml_get_str(root, "kind", &kind, &err), LVR_OK, "%s", err.msg);
    cr_assert_str_eq(kind, "timing");
    cr_assert_eq(lvr_yaml_get_map(root, "streams", &streams, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_yaml_get_map(streams, "rounds", &rounds, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_yaml_get_u64(rounds, "rows", 0, 100, &n, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(n, 2);
    lvr_yaml_free(doc);
    lvr_buf_free(&out);
    lvr_trace_close(t);
}

Test(trace_export, the_summary_is_text)
{
    lvr_buf out = LVR_BUF_INIT;
    record_small();
    lvr_trace *t = fixture_open();
    cr_assert_eq(lvr_trace_info(t, false, &out, NULL), LVR_OK);
    cr_assert_not_null(strstr(out.data, "/round_nodes"));
    cr_assert_not_null(strstr(out.data, "complete   yes"));
    cr_assert_null(strstr(out.data, "dropped records"));
    lvr_buf_free(&out);
    lvr_trace_close(t);
}
