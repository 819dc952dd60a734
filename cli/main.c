/* The `lever` program: finds the subcommand, turns signals into a flag and errors into messages and exit
 * statuses. */
#include "cli/cli.h"
#include "cli/progress.h"
#include "common/param.h"
#include "lvr_config.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

atomic_bool lvr_cli_cancel;

typedef struct command {
    const char *name, *summary;
    lvr_status (*run)(int argc, char *const *argv, lvr_error *err);
} command;

static const command commands[] = {
    {"doctor", "what this machine has, and how to mend what is missing", lvr_cmd_doctor},
    {"model", "read, make and pack models", lvr_cmd_model},
    {"run", "generate text with a target, a draft and a policy", lvr_cmd_run},
    {"record", "write a trace: timings, or with --oracle what any policy could meet", lvr_cmd_record},
    {"fit", "traces to a cost model", lvr_cmd_fit},
    {"sim", "replay a policy against traces and a cost model", lvr_cmd_sim},
    {"tune", "search a policy's parameters and write a policy file", lvr_cmd_tune},
    {"correlate", "a measured run against its simulated twin", lvr_cmd_correlate},
    {"trace", "look into, check and export traces", lvr_cmd_trace},
    {"bench", "micro-benchmarks and whole passes", lvr_cmd_bench},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

/* A terminal that goes away stops the program too, unless it was started to outlive it (nohup). */
static void handle_stops(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, hangup;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
}

/* The first signal asks for a clean end; a second one, of any kind, ends the program at once. */
static void on_signal(int number)
{
    (void)number;
    atomic_store(&lvr_cli_cancel, true);
    handle_stops(SIG_DFL);
}

static void install_signals(void)
{
    handle_stops(on_signal);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of the write, with a message */
    signal(SIGXFSZ, SIG_IGN); /* and so is a file larger than the process may write */
}

static void print_help(FILE *to)
{
    fputs("usage: lever COMMAND [options]\n\n", to);
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("\n`lever COMMAND --help` lists a command's options; `lever --version` says what this is.\n"
          "Results go to standard output, everything else to standard error. Exit status: 0 done, 1 failed, "
          "2 wrong usage or\n"
          "configuration.\n",
          to);
}

static void print_version(void)
{
    printf("lever %s (%s, %s, %s)\n"
           "An independent re-implementation of the method of arXiv 2605.16786. GPL-3.0-or-later, without "
           "any warranty.\n",
           LVR_VERSION, LVR_COMMIT, LVR_COMPILER, LVR_BUILDTYPE);
}

static const command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static lvr_status fail_unknown(const char *name, lvr_error *err)
{
    const char *names[N_COMMANDS];
    for (size_t i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    const char *near = lvr_closest_name(name, names, N_COMMANDS);
    if (near)
        return lvr_fail(err, LVR_ERR_USAGE, "unknown command \"%.64s\"; did you mean \"%s\"?", name, near);
    return lvr_fail(err, LVR_ERR_USAGE, "unknown command \"%.64s\"; `lever --help` lists the commands", name);
}

static lvr_status dispatch(int argc, char **argv, lvr_error *err)
{
    if (argc < 2) {
        print_help(stderr);
        return lvr_fail(err, LVR_ERR_USAGE, "no command given");
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return LVR_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        print_version();
        return LVR_OK;
    }
    const command *c = find_command(argv[1]);
    return c ? c->run(argc - 1, argv + 1, err) : fail_unknown(argv[1], err);
}

/* What was printed must also have arrived. */
static lvr_status close_output(lvr_error *err)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return LVR_OK;
    return lvr_fail_errno(err, errno ? errno : EIO, "standard output: cannot write the result");
}

int main(int argc, char **argv)
{
    lvr_error err = LVR_ERROR_INIT;
    install_signals();
    lvr_log_set_sink(lvr_progress_log, LVR_LOG_INFO, NULL);
    lvr_status status = dispatch(argc, argv, &err);
    if (status == LVR_OK)
        status = close_output(&err);
    if (status != LVR_OK)
        fprintf(stderr, "lever: %s\n", err.msg[0] ? err.msg : lvr_status_name(status));
    return lvr_status_exit_code(status);
}
