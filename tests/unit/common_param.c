#include "common/param.h"
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>

typedef struct settings {
    uint32_t threads;
    uint64_t seed;
    uint64_t budget;
    double rate;
    bool verbose;
    int policy;
    const char *model;
    const char *input;
    lvr_strlist sets;
} settings;

static const char *const policies[] = {"lru", "belady", "score", NULL};

#define FIELD(f) offsetof(settings, f)
static const lvr_param table[] = {
    {.name = "threads",
     .short_name = 't',
     .type = LVR_PARAM_U32,
     .offset = FIELD(threads),
     .min = 1,
     .max = 64,
     .def = 4,
     .help = "Worker threads",
     .tunable = true},
    {.name = "seed",
     .type = LVR_PARAM_U64,
     .offset = FIELD(seed),
     .min = 0,
     .max = 18446744073709551615.0,
     .def = 1,
     .help = "Master seed"},
    {.name = "budget",
     .alias = "md",
     .type = LVR_PARAM_SIZE,
     .offset = FIELD(budget),
     .min = 4096,
     .max = 1e15,
     .def = 1048576,
     .help = "DRAM budget"},
    {.name = "rate",
     .type = LVR_PARAM_DOUBLE,
     .offset = FIELD(rate),
     .min = -2,
     .max = 2,
     .def = 0.5,
     .unit = "1",
     .help = "A rate"},
    {.name = "verbose",
     .short_name = 'v',
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(verbose),
     .max = 1,
     .help = "Say more"},
    {.name = "policy",
     .type = LVR_PARAM_ENUM,
     .offset = FIELD(policy),
     .max = 2,
     .def = 1,
     .choices = policies,
     .help = "Which policy"},
    {.name = "model",
     .short_name = 'm',
     .type = LVR_PARAM_STR,
     .offset = FIELD(model),
     .def = NAN,
     .help = "Model file",
     .positional = true},
    {.name = "input",
     .type = LVR_PARAM_STR,
     .offset = FIELD(input),
     .def = NAN,
     .def_str = "-",
     .help = "Input file",
     .positional = true},
    {.name = "set",
     .type = LVR_PARAM_STR,
     .offset = FIELD(sets),
     .def = NAN,
     .help = "Set key=value",
     .multi = true},
};
#define N_ROWS (sizeof table / sizeof *table)

static settings defaults(void)
{
    settings s;
    memset(&s, 0xa5, sizeof s);
    lvr_params_default(table, N_ROWS, &s);
    return s;
}

Test(param, defaults)
{
    const settings s = defaults();
    cr_assert_eq(s.threads, 4);
    cr_assert_eq(s.seed, 1);
    cr_assert_eq(s.budget, 1048576);
    cr_assert_eq(s.rate, 0.5);
    cr_assert_eq(s.verbose, false);
    cr_assert_eq(s.policy, 1);
    cr_assert_null(s.model);
    cr_assert_str_eq(s.input, "-");
    cr_assert_eq(s.sets.n, 0);
}

static void set_ok(settings *s, const char *key, const char *value)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_params_set(table, N_ROWS, s, "--set", key, value, &err), LVR_OK, "%s", err.msg);
}

static void set_fails(settings *s, const char *key, const char *value, const char *message)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_params_set(table, N_ROWS, s, "--set", key, value, &err), LVR_ERR_CONFIG);
    cr_assert_eq(err.status, LVR_ERR_CONFIG);
    cr_assert_str_eq(err.msg, message);
    cr_assert_eq(lvr_params_set(table, N_ROWS, s, "--set", key, value, NULL), LVR_ERR_CONFIG);
}

Test(param, set_accepts_every_kind)
{
    settings s = defaults();
    set_ok(&s, "threads", "64");
    set_ok(&s, "seed", "18446744073709551615");
    set_ok(&s, "budget", "1.5MiB");
    set_ok(&s, "rate", "-2");
    set_ok(&s, "verbose", "true");
    set_ok(&s, "policy", "score");
    set_ok(&s, "model", "");
    cr_assert_eq(s.threads, 64);
    cr_assert_eq(s.seed, UINT64_MAX);
    cr_assert_eq(s.budget, 1572864);
    cr_assert_eq(s.rate, -2);
    cr_assert_eq(s.verbose, true);
    cr_assert_eq(s.policy, 2);
    cr_assert_str_eq(s.model, "");
}

Test(param, set_refuses_and_explains)
{
    settings s = defaults();
    set_fails(&s, "threads", "0", "--set: `threads`: expected a whole number from 1 to 64, found \"0\"");
    set_fails(&s, "threads", "4294967297",
              "--set: `threads`: expected a whole number from 1 to 64, found \"4294967297\"");
    set_fails(&s, "threads", "x", "--set: `threads`: expected a whole number from 1 to 64, found \"x\"");
    set_fails(&s, "seed", "-1", "--set: `seed`: expected a whole number of at least 0, found \"-1\"");
    set_fails(&s, "rate", "nan", "--set: `rate`: expected a finite number from -2 to 2, found \"nan\"");
    set_fails(&s, "verbose", "yes", "--set: `verbose`: expected true or false, found \"yes\"");
    set_fails(&s, "policy", "beladi",
              "--set: `policy`: expected one of lru, belady, score, found \"beladi\"; did you mean belady?");
    set_fails(&s, "thraeds", "4", "--set: unknown parameter `thraeds`; did you mean `threads`?");
    set_fails(
        &s, "zzzzzzzz", "4",
        "--set: unknown parameter `zzzzzzzz`; known here: threads, seed, budget, rate, verbose, policy, "
        "model, input, set");
    cr_assert_eq(s.threads, 4);
    cr_assert_eq(s.seed, 1);
}

static lvr_status from_yaml(const char *text, settings *s, lvr_yaml_doc **ret_doc, lvr_error *err)
{
    lvr_yaml_doc *doc = NULL;
    cr_assert_eq(lvr_yaml_load_mem("p.yaml", text, strlen(text), &doc, err), LVR_OK, "%s", err->msg);
    *ret_doc = doc;
    return lvr_params_from_yaml(table, N_ROWS, s, lvr_yaml_root(doc), err);
}

Test(param, yaml_round_trip)
{
    settings s = defaults(), back = defaults();
    set_ok(&s, "threads", "7");
    set_ok(&s, "rate", "1e-7");
    set_ok(&s, "policy", "lru");
    set_ok(&s, "verbose", "true");
    set_ok(&s, "model", "a b: c");
    s.input = NULL;
    lvr_buf buf = LVR_BUF_INIT;
    lvr_yaml_out y;
    lvr_yaml_out_init(&y, &buf);
    lvr_params_to_yaml(table, N_ROWS, &s, &y);
    cr_assert(!buf.failed);
    lvr_yaml_doc *doc = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(from_yaml(buf.data, &back, &doc, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_yaml_check_used(doc, &err), LVR_OK);
    for (size_t i = 0; i < 6; i++)
        cr_assert_eq(lvr_param_get_number(&table[i], &back), lvr_param_get_number(&table[i], &s));
    cr_assert_str_eq(back.model, "a b: c");
    cr_assert_null(back.input);
    lvr_yaml_free(doc);
    lvr_buf_free(&buf);
}

Test(param, yaml_errors_have_positions)
{
    const struct {
        const char *text, *message;
    } cases[] = {
        {"threads: 3\npolcy: lru\n", "p.yaml:2:8: unknown parameter `polcy`; did you mean `policy`?"},
        {"threads: [3]\n",
         "p.yaml:1:10: `threads`: expected a whole number from 1 to 64, found \"a sequence\""},
        {"rate: 3\n", "p.yaml:1:7: `rate`: expected a finite number from -2 to 2, found \"3\""},
        {"threads:\n", "p.yaml:1:9: `threads`: expected a whole number from 1 to 64, found \"\""},
        {"- 1\n", "p.yaml:1:1: expected a mapping of parameters, found a sequence"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        settings s = defaults();
        lvr_error err = LVR_ERROR_INIT;
        lvr_yaml_doc *doc = NULL;
        cr_assert_eq(from_yaml(cases[i].text, &s, &doc, &err), LVR_ERR_CONFIG);
        cr_assert_str_eq(err.msg, cases[i].message);
        lvr_yaml_free(doc);
    }
}

Test(param, numbers_by_row_clamp_and_round)
{
    settings s = defaults();
    const struct {
        size_t row;
        double in, out;
    } cases[] = {{0, 1000, 64}, {0, -5, 1},    {0, 2.6, 3}, {0, NAN, 1}, {1, 1e30, 18446744073709551615.0},
                 {3, -7, -2},   {3, 0.3, 0.3}, {4, 0.7, 1}, {5, 99, 2},  {5, 0.2, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lvr_param_set_number(&table[cases[i].row], &s, cases[i].in);
        cr_assert_eq(lvr_param_get_number(&table[cases[i].row], &s), cases[i].out, "case %zu", i);
    }
    lvr_param_set_number(&table[6], &s, 3);
    cr_assert_null(s.model);
    cr_assert(isnan(lvr_param_get_number(&table[6], &s)));
}

#define MAX_ARGS 12
typedef struct args {
    char text[MAX_ARGS][64];
    char *argv[MAX_ARGS + 1];
    int argc;
} args;

static void split(args *a, const char *line)
{
    *a = (args){0};
    while (*line) {
        const size_t n = strcspn(line, "|");
        memcpy(a->text[a->argc], line, n);
        a->argv[a->argc] = a->text[a->argc];
        a->argc++;
        line += n + (line[n] == '|');
    }
}

Test(options, all_forms)
{
    args a;
    settings s = defaults();
    bool help = true;
    lvr_error err = LVR_ERROR_INIT;
    split(&a, "run|-t|8|--seed=9|-md|2MiB|a.gguf|-v|--rate|-1.5|--|-b");
    cr_assert_eq(lvr_options_parse(table, N_ROWS, &s, a.argc, a.argv, &help, &err), LVR_OK, "%s", err.msg);
    cr_assert(!help);
    cr_assert_eq(s.threads, 8);
    cr_assert_eq(s.seed, 9);
    cr_assert_eq(s.budget, 2097152);
    cr_assert_str_eq(s.model, "a.gguf");
    cr_assert_str_eq(s.input, "-b");
    cr_assert(s.verbose);
    cr_assert_eq(s.rate, -1.5);
    cr_assert(lvr_option_given(a.argc, a.argv, &table[0]));
    cr_assert(lvr_option_given(a.argc, a.argv, &table[2]));
    cr_assert(!lvr_option_given(a.argc, a.argv, &table[5]));
}

Test(options, repeats_and_named_positionals)
{
    args a;
    settings s = defaults();
    bool help = true;
    lvr_error err = LVR_ERROR_INIT;
    split(&a, "run|-|--set|x=1|--model|m|--set=y=2|--verbose=false");
    cr_assert_eq(lvr_options_parse(table, N_ROWS, &s, a.argc, a.argv, &help, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(s.sets.n, 2);
    cr_assert_str_eq(s.sets.items[0], "x=1");
    cr_assert_str_eq(s.sets.items[1], "y=2");
    cr_assert_str_eq(s.model, "m");
    cr_assert_str_eq(s.input, "-");
    cr_assert(!s.verbose);
    lvr_strlist_free(&s.sets);
    cr_assert_eq(s.sets.n, 0);
}

Test(options, a_repeating_positional_takes_the_rest)
{
    const lvr_param rows[] = {table[6],
                              {.name = "files",
                               .type = LVR_PARAM_STR,
                               .offset = FIELD(sets),
                               .def = NAN,
                               .positional = true,
                               .multi = true}};
    args a;
    settings s = defaults();
    bool help = true;
    split(&a, "cmp|m|a|b|c");
    cr_assert_eq(lvr_options_parse(rows, 2, &s, a.argc, a.argv, &help, NULL), LVR_OK);
    cr_assert_str_eq(s.model, "m");
    cr_assert_eq(s.sets.n, 3);
    cr_assert_str_eq(s.sets.items[2], "c");
    lvr_strlist_free(&s.sets);
}

Test(options, errors_are_usage_errors_that_help)
{
    const struct {
        const char *line, *message;
    } cases[] = {
        {"run|--thraeds|4", "unknown option --thraeds; did you mean --threads?"},
        {"run|--thraeds=4", "unknown option --thraeds=4; did you mean --threads?"},
        {"run|-threads|4", "unknown option -threads; did you mean --threads?"},
        {"run|-q", "unknown option -q; --help lists the options"},
        {"run|--threads", "--threads needs a value: expected a whole number from 1 to 64, found nothing; "
                          "write --threads=VALUE"},
        {"run|--model|--verbose",
         "--model needs a value: expected a text, found --verbose; write --model=VALUE"},
        {"run|-m|-v", "-m needs a value: expected a text, found -v; write --model=VALUE"},
        {"run|-t|65", "--threads: expected a whole number from 1 to 64, found \"65\""},
        {"run|--policy|lur",
         "--policy: expected one of lru, belady, score, found \"lur\"; did you mean lru?"},
        {"run|--verbose=1", "--verbose: expected true or false, found \"1\""},
        {"run|--seed|1|--seed|2", "--seed is given twice; give it once"},
        {"run|-t|1|--threads=2", "--threads is given twice; give it once"},
        {"run|a|b|c", "unexpected argument \"c\"; options begin with --, and --help lists them"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        args a;
        settings s = defaults();
        bool help = true;
        lvr_error err = LVR_ERROR_INIT;
        split(&a, cases[i].line);
        cr_assert_eq(lvr_options_parse(table, N_ROWS, &s, a.argc, a.argv, &help, &err), LVR_ERR_USAGE, "%s",
                     cases[i].line);
        cr_assert_eq(err.status, LVR_ERR_USAGE);
        cr_assert_str_eq(err.msg, cases[i].message);
        cr_assert(help);
        s = defaults();
        cr_assert_eq(lvr_options_parse(table, N_ROWS, &s, a.argc, a.argv, &help, NULL), LVR_ERR_USAGE);
    }
}

Test(options, help_stops_parsing_and_lists_rows)
{
    args a;
    settings s = defaults();
    bool help = false;
    split(&a, "run|-h|--nonsense");
    cr_assert_eq(lvr_options_parse(table, N_ROWS, &s, a.argc, a.argv, &help, NULL), LVR_OK);
    cr_assert(help);
    lvr_buf buf = LVR_BUF_INIT;
    lvr_options_help(table, N_ROWS, &buf);
    cr_assert(!buf.failed);
    cr_assert(strstr(buf.data, "  -t, --threads N             Worker threads (a whole number from 1 to 64; "
                               "default 4)\n"),
              "%s", buf.data);
    cr_assert(strstr(buf.data, "  -v, --verbose               Say more\n"), "%s", buf.data);
    cr_assert(strstr(buf.data, "  model                       Model file\n"), "%s", buf.data);
    cr_assert(strstr(buf.data, "--set TEXT..."), "%s", buf.data);
    lvr_buf_free(&buf);
}

Test(options, no_arguments_at_all)
{
    settings s = defaults();
    bool help = true;
    cr_assert_eq(lvr_options_parse(table, N_ROWS, &s, 0, NULL, &help, NULL), LVR_OK);
    cr_assert(!help);
}

/* A word for 0, whatever the range. */
Test(options, a_word_for_zero)
{
    static const lvr_param words[] = {
        {.name = "depth",
         .type = LVR_PARAM_U32,
         .offset = FIELD(threads),
         .min = 1,
         .max = 64,
         .zero_word = "auto"},
        {.name = "budget",
         .type = LVR_PARAM_SIZE,
         .offset = FIELD(budget),
         .min = 1,
         .max = 1e15,
         .def = NAN,
         .zero_word = "auto"},
    };
    args a;
    settings s = {.threads = 9, .budget = 9};
    bool help = false;
    lvr_error err = LVR_ERROR_INIT;
    split(&a, "run|--depth|auto|--budget=auto");
    cr_assert_eq(lvr_options_parse(words, 2, &s, a.argc, a.argv, &help, NULL), LVR_OK);
    cr_assert(s.threads == 0 && s.budget == 0);
    split(&a, "run|--depth|0");
    cr_assert_eq(lvr_options_parse(words, 2, &s, a.argc, a.argv, &help, &err), LVR_ERR_USAGE);
    cr_assert_str_eq(err.msg, "--depth: expected a whole number from 1 to 64, or auto, found \"0\"");
    lvr_params_default(words, 2, &s);
    cr_assert(s.threads == 0 && s.budget == 0);
    lvr_buf buf = LVR_BUF_INIT;
    lvr_options_help(words, 2, &buf);
    cr_assert(strstr(buf.data, "or auto; default auto)"), "%s", buf.data);
    cr_assert_null(strstr(strstr(buf.data, "--budget"), "default"), "none to speak of: %s", buf.data);
    lvr_buf_free(&buf);
}

Test(closest, near_and_far)
{
    const char *const names[] = {"threads", "seed", "cache_bytes", "policy"};
    cr_assert_str_eq(lvr_closest_name("thread", names, 4), "threads");
    cr_assert_str_eq(lvr_closest_name("sede", names, 4), "seed");
    cr_assert_str_eq(lvr_closest_name("Cache-Bytes", names, 4), "cache_bytes");
    cr_assert_null(lvr_closest_name("banana", names, 4));
    cr_assert_null(lvr_closest_name("", names, 4));
    cr_assert_null(lvr_closest_name("x", names, 0));
    char huge[300];
    memset(huge, 'a', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    cr_assert_null(lvr_closest_name(huge, names, 4));
}
