/* lever trace: look into, check and export traces. */
#include "cli/cli.h"
#include "common/buf.h"
#include "common/json.h"
#include "common/log.h"
#include "common/param.h"
#include "traces/trace.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char usage[] = "usage: lever trace info|validate|export [options]\n"
                            "\n"
                            "  info FILE                    what a trace holds\n"
                            "  validate FILE                check every row against what can be true\n"
                            "  export FILE --to csv -o DIR  one CSV file per stream\n"
                            "  merge, diff, import          not in this version\n"
                            "\n"
                            "`lever trace NAME --help` lists a subcommand's options.\n";

typedef struct trace_options {
    const char *file, *out, *to;
    bool json;
} trace_options;

#define FILE_ROW                                                                                             \
    {                                                                                                        \
        .name = "trace", .type = LVR_PARAM_STR, .offset = offsetof(trace_options, file), .def = NAN,         \
        .help = "the trace, a .h5 file", .positional = true                                                  \
    }
#define JSON_ROW                                                                                             \
    {                                                                                                        \
        .name = "json", .type = LVR_PARAM_BOOL, .offset = offsetof(trace_options, json), .max = 1,           \
        .help = "print JSON"                                                                                 \
    }

static const lvr_param info_table[] = {FILE_ROW, JSON_ROW};
static const lvr_param validate_table[] = {FILE_ROW, JSON_ROW};
static const lvr_param export_table[] = {
    FILE_ROW,
    {.name = "to",
     .type = LVR_PARAM_STR,
     .offset = offsetof(trace_options, to),
     .def = NAN,
     .def_str = "csv",
     .help = "the format: csv (perfetto and fio are not in this version)"},
    {.name = "output",
     .short_name = 'o',
     .type = LVR_PARAM_STR,
     .offset = offsetof(trace_options, out),
     .def = NAN,
     .help = "the folder to write to, made if it is not there"},
};

#define N_ROWS(table) (sizeof(table) / sizeof((table)[0]))

static lvr_status print(lvr_buf *out, lvr_error *err)
{
    lvr_status st = LVR_OK;
    if (out->failed)
        st = lvr_fail(err, LVR_ERR_NOMEM, "trace: out of memory for the results");
    else if (out->len > 0 && (fwrite(out->data, 1, out->len, stdout) != out->len || fflush(stdout) != 0))
        st = lvr_fail_errno(err, errno, "standard output: cannot write");
    lvr_buf_free(out);
    return st;
}

static lvr_status run_info(lvr_trace *t, const trace_options *o, lvr_error *err)
{
    lvr_buf out = LVR_BUF_INIT;
    const lvr_status st = lvr_trace_info(t, o->json, &out, err);
    if (st == LVR_OK)
        return print(&out, err);
    lvr_buf_free(&out);
    return st;
}

/* The report's lines as an array. */
static void findings_json(lvr_buf *out, const lvr_trace *t, const lvr_buf *report, uint64_t findings)
{
    lvr_json j;
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    lvr_json_str(&j, "path", lvr_trace_path(t));
    lvr_json_bool(&j, "complete", lvr_trace_get_meta(t)->complete);
    lvr_json_u64(&j, "findings", findings);
    lvr_json_array(&j, "lines");
    for (const char *line = report->data; line && *line;) {
        const char *end = strchrnul(line, '\n');
        lvr_json_strn(&j, NULL, line, (size_t)(end - line));
        line = *end ? end + 1 : end;
    }
    lvr_json_end_array(&j);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}

static lvr_status run_validate(lvr_trace *t, const trace_options *o, lvr_error *err)
{
    lvr_buf report = LVR_BUF_INIT, out = LVR_BUF_INIT;
    uint64_t findings = 0;
    lvr_status st = lvr_trace_validate(t, &report, &findings, err);
    if (st == LVR_OK) {
        if (o->json)
            findings_json(&out, t, &report, findings);
        else if (findings > 0)
            lvr_buf_append(&out, report.data, report.len);
        else
            lvr_buf_printf(&out, "%s: no findings\n", lvr_trace_path(t));
        st = print(&out, err);
    }
    lvr_buf_free(&report);
    if (st == LVR_OK && findings > 0)
        st = lvr_fail(err, LVR_ERR_FORMAT, "%s: %" PRIu64 " finding%s; see the report on standard output",
                      lvr_trace_path(t), findings, findings == 1 ? "" : "s");
    return st;
}

static lvr_status check_export(const trace_options *o, lvr_error *err)
{
    if (strcmp(o->to, "perfetto") == 0 || strcmp(o->to, "fio") == 0)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                        "trace export: --to %s is not in this version; use --to csv", o->to);
    if (strcmp(o->to, "csv") != 0)
        return lvr_fail(err, LVR_ERR_USAGE, "trace export: expected --to csv, found \"%s\"", o->to);
    if (!o->out)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "trace export: which folder? usage: lever trace export FILE --to csv -o DIR");
    return LVR_OK;
}

static lvr_status run_export(lvr_trace *t, const trace_options *o, lvr_error *err)
{
    const lvr_status st = lvr_trace_export_csv(t, o->out, err);
    if (st == LVR_OK)
        lvr_log(LVR_LOG_INFO, "%s: written as CSV to %s", lvr_trace_path(t), o->out);
    return st;
}

typedef struct subcommand {
    const char *name, *synopsis;
    const lvr_param *table;
    size_t n;
    lvr_status (*check)(const trace_options *o, lvr_error *err); /* of the options alone; may be NULL */
    lvr_status (*run)(lvr_trace *t, const trace_options *o, lvr_error *err);
} subcommand;

static const subcommand subcommands[] = {
    {"info", "info FILE [options]", info_table, N_ROWS(info_table), NULL, run_info},
    {"validate", "validate FILE [options]", validate_table, N_ROWS(validate_table), NULL, run_validate},
    {"export", "export FILE --to csv -o DIR", export_table, N_ROWS(export_table), check_export, run_export},
};

static const subcommand *find_subcommand(const char *name)
{
    for (size_t i = 0; i < N_ROWS(subcommands); i++)
        if (strcmp(subcommands[i].name, name) == 0)
            return &subcommands[i];
    return NULL;
}

static lvr_status print_help(const subcommand *sub, lvr_error *err)
{
    lvr_buf out = LVR_BUF_INIT;
    lvr_buf_printf(&out, "usage: lever trace %s\n\n", sub->synopsis);
    lvr_options_help(sub->table, sub->n, &out);
    return print(&out, err);
}

static lvr_status run_subcommand(const subcommand *sub, int argc, char *const *argv, lvr_error *err)
{
    trace_options o = {0};
    bool help = false;
    lvr_trace *t = NULL;
    lvr_params_default(sub->table, sub->n, &o);
    lvr_status st = lvr_options_parse(sub->table, sub->n, &o, argc, argv, &help, err);
    if (st != LVR_OK)
        return st;
    if (help)
        return print_help(sub, err);
    if (!o.file)
        return lvr_fail(err, LVR_ERR_USAGE, "trace %s: which trace? usage: lever trace %s", sub->name,
                        sub->synopsis);
    if (sub->check)
        st = sub->check(&o, err);
    if (st == LVR_OK)
        st = lvr_trace_open(o.file, &t, err);
    if (st == LVR_OK)
        st = sub->run(t, &o, err);
    lvr_trace_close(t);
    return st;
}

static lvr_status refuse(const char *name, lvr_error *err)
{
    static const char *const later[] = {"merge", "diff", "import"};
    static const char *const names[] = {"info", "validate", "export", "merge", "diff", "import"};
    for (size_t i = 0; i < N_ROWS(later); i++)
        if (strcmp(name, later[i]) == 0)
            return lvr_fail(err, LVR_ERR_UNSUPPORTED, "trace %s is not in this version", name);
    const char *near = lvr_closest_name(name, names, N_ROWS(names));
    return lvr_fail(err, LVR_ERR_USAGE, "trace: expected info, validate or export, found \"%s\"%s%s%s", name,
                    near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

lvr_status lvr_cmd_trace(int argc, char *const *argv, lvr_error *err)
{
    if (argc < 2)
        return lvr_fail(err, LVR_ERR_USAGE, "trace: which subcommand? info, validate or export");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        lvr_buf out = LVR_BUF_INIT;
        lvr_buf_puts(&out, usage);
        return print(&out, err);
    }
    const subcommand *sub = find_subcommand(argv[1]);
    if (!sub)
        return refuse(argv[1], err);
    return run_subcommand(sub, argc - 1, argv + 1, err);
}
