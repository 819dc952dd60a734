#include "common/fs.h"
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64];
static char path[128];

static void setup(void)
{
    snprintf(dir, sizeof dir, "/tmp/lvr-fs-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/file", dir);
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    cr_assert_eq(system(command), 0);
}

static int count_files(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    cr_assert_not_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

TestSuite(fs, .init = setup, .fini = teardown);

Test(fs, writes_atomically_and_reads_back)
{
    lvr_buf buf = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_write_file_atomic(path, "first", 5, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_write_file_atomic(path, "a\0b", 3, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(count_files(), 1);
    cr_assert_eq(lvr_read_file(path, 3, &buf, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(buf.len, 3);
    cr_assert_eq(memcmp(buf.data, "a\0b", 4), 0);
    lvr_buf_free(&buf);
    cr_assert_eq(lvr_write_file_atomic(path, NULL, 0, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_read_file(path, 0, &buf, &err), LVR_OK, "%s", err.msg);
    cr_assert_str_eq(buf.data, "");
    lvr_buf_free(&buf);
}

Test(fs, reading_has_limits)
{
    lvr_buf buf = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_write_file_atomic(path, "12345", 5, &err), LVR_OK);
    cr_assert_eq(lvr_read_file(path, 4, &buf, &err), LVR_ERR_FORMAT);
    cr_assert(strstr(err.msg, path) && strstr(err.msg, "at most 4 bytes"), "%s", err.msg);
    cr_assert_eq(lvr_read_file("/dev/zero", 100000, &buf, &err), LVR_ERR_FORMAT);
    cr_assert_eq(lvr_read_file("/proc/self/status", 1 << 20, &buf, &err), LVR_OK);
    cr_assert_gt(buf.len, 0);
    lvr_buf_free(&buf);
    cr_assert_eq(lvr_read_file(dir, 100, &buf, &err), LVR_ERR_IO);
    cr_assert_eq(lvr_read_file("/nonexistent/x", 100, &buf, &err), LVR_ERR_IO);
    cr_assert(strstr(err.msg, "/nonexistent/x") && strstr(err.msg, "No such file"), "%s", err.msg);
    cr_assert_null(buf.data);
}

Test(fs, a_full_disk_says_so)
{
    lvr_error err = LVR_ERROR_INIT;
    const int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    cr_assert_geq(fd, 0);
    cr_assert_eq(lvr_pwrite_all(fd, "x", 1, 0, "/dev/full", &err), LVR_ERR_IO);
    cr_assert_str_eq(err.msg, "/dev/full: the disk is full; free some space or write elsewhere: "
                              "No space left on device");
    close(fd);
    err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_write_file_atomic("/dev/full", "x", 1, &err), LVR_ERR_IO);
    cr_assert(strstr(err.msg, "the disk is full"), "%s", err.msg);
    struct stat st;
    cr_assert_eq(stat("/dev/full", &st), 0);
    cr_assert(S_ISCHR(st.st_mode));
}

Test(fs, a_failed_write_keeps_the_old_file)
{
    lvr_error err = LVR_ERROR_INIT;
    char inside[160];
    cr_assert_eq(lvr_write_file_atomic("/nonexistent/x", "x", 1, &err), LVR_ERR_IO);
    cr_assert_eq(lvr_write_file_atomic(path, "x", 1, &err), LVR_OK);
    snprintf(inside, sizeof inside, "%s/below", path);
    cr_assert_eq(lvr_write_file_atomic(inside, "x", 1, &err), LVR_ERR_IO);
    cr_assert_eq(lvr_write_file_atomic(dir, "x", 1, &err), LVR_ERR_IO);
    cr_assert_eq(count_files(), 1);
}

/* What can be written is found writable, and what cannot is not; nothing is written to find out. */
Test(fs, writable_before_it_is_written)
{
    lvr_error err = LVR_ERROR_INIT;
    char inside[160], slash[160];
    cr_assert_eq(lvr_check_writable(path, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(count_files(), 0);
    cr_assert_eq(lvr_write_file_atomic(path, "x", 1, &err), LVR_OK);
    cr_assert_eq(lvr_check_writable(path, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_check_writable("/dev/null", &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_check_writable("name-without-a-folder", &err), LVR_OK, "%s", err.msg);
    snprintf(inside, sizeof inside, "%s/below", path);
    snprintf(slash, sizeof slash, "%s/new/", dir);
    const char *const bad[] = {inside, slash, dir, "/nonexistent/x", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = LVR_ERROR_INIT;
        cr_assert_eq(lvr_check_writable(bad[i], &err), LVR_ERR_IO, "%s", bad[i]);
        cr_assert(strstr(err.msg, bad[i]), "%s", err.msg);
    }
}

Test(fs, positioned_io)
{
    lvr_error err = LVR_ERROR_INIT;
    char data[8] = "";
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    cr_assert_geq(fd, 0);
    cr_assert_eq(lvr_pwrite_all(fd, "hello", 5, 100, path, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_pread_all(fd, data, 5, 100, path, &err), LVR_OK, "%s", err.msg);
    cr_assert_str_eq(data, "hello");
    cr_assert_eq(lvr_pread_all(fd, data, 8, 102, path, &err), LVR_ERR_FORMAT);
    cr_assert(strstr(err.msg, "expected 8 bytes at offset 102, found 3"), "%s", err.msg);
    cr_assert_eq(lvr_pread_all(fd, data, 1, UINT64_MAX, path, &err), LVR_ERR_FORMAT);
    cr_assert_eq(lvr_pwrite_all(fd, data, 2, INT64_MAX - 1, path, &err), LVR_ERR_FORMAT);
    cr_assert_eq(lvr_pread_all(fd, data, 0, 0, path, &err), LVR_OK);
    close(fd);
    cr_assert_eq(lvr_pread_all(fd, data, 1, 0, path, &err), LVR_ERR_IO);
}

Test(fs, makes_directories)
{
    lvr_error err = LVR_ERROR_INIT;
    char deep[160];
    struct stat st;
    snprintf(deep, sizeof deep, "%s/a/b//c/", dir);
    cr_assert_eq(lvr_mkdirs(deep, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_mkdirs(deep, &err), LVR_OK, "%s", err.msg);
    cr_assert(stat(deep, &st) == 0 && S_ISDIR(st.st_mode));
    cr_assert_eq(lvr_mkdirs("/", &err), LVR_OK);
    cr_assert_eq(lvr_mkdirs("", &err), LVR_ERR_IO);
    cr_assert_eq(lvr_write_file_atomic(path, "x", 1, &err), LVR_OK);
    cr_assert_eq(lvr_mkdirs(path, &err), LVR_ERR_IO);
    cr_assert(strstr(err.msg, "expected a directory"), "%s", err.msg);
}
