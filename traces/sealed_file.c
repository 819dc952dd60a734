#include "traces/sealed_file.h"

#include "common/fs.h"
#include "common/hash.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The user block, little endian. Bytes not named are zero; the last four cover them too. */
enum {
    SEAL_MAGIC_AT = 0,
    SEAL_VERSION_AT = 8,    /* u32 */
    SEAL_SEGMENT_AT = 12,   /* u32 */
    SEAL_RECORDING_AT = 16, /* u64 */
    SEAL_LENGTH_AT = 24,    /* u64: bytes after the user block */
    SEAL_CRC_AT = 32,       /* u32: CRC-32C of those bytes */
    SEAL_SELF_CRC_AT = 508, /* u32: CRC-32C of bytes 0..507 */
};
static const uint8_t seal_magic[8] = {'L', 'V', 'R', 'T', 'R', 'A', 'C', 'E'};
#define SEAL_VERSION 1u

struct lvr_sealed_file {
    int fd;
    bool writing;
    char *path;
    hid_t h5, driver;
    lvr_seal_id id;
    lvr_error failure; /* the first failed write */
};

/* ---- the guard
 * ------------------------------------------------------------------------------------------------- */

static pthread_mutex_t h5_lock = PTHREAD_MUTEX_INITIALIZER;

lvr_h5_guard lvr_h5_enter(void)
{
    lvr_h5_guard guard = {0};
    pthread_mutex_lock(&h5_lock);
    H5Eget_auto2(H5E_DEFAULT, &guard.report, &guard.report_data);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    return guard;
}

void lvr_h5_leave(lvr_h5_guard guard)
{
    H5Eset_auto2(H5E_DEFAULT, guard.report, guard.report_data);
    pthread_mutex_unlock(&h5_lock);
}

/* ---- the HDF5 file driver
 * -------------------------------------------------------------------------------------- */

typedef struct driver_file {
    H5FD_t pub; /* must be first: HDF5 fills it */
    lvr_sealed_file *sealed;
    haddr_t eoa, eof;
} driver_file;

typedef struct driver_info {
    lvr_sealed_file *sealed;
} driver_info;

static H5FD_t *driver_open(const char *name, unsigned flags, hid_t fapl, haddr_t maxaddr)
{
    (void)name;
    (void)flags;
    (void)maxaddr;
    const driver_info *info = H5Pget_driver_info(fapl);
    struct stat st;
    if (!info || fstat(info->sealed->fd, &st) != 0)
        return NULL;
    driver_file *file = calloc(1, sizeof *file);
    if (!file)
        return NULL;
    file->sealed = info->sealed;
    file->eof = (haddr_t)st.st_size;
    return &file->pub;
}

static herr_t driver_close(H5FD_t *pub)
{
    free((driver_file *)pub);
    return 0;
}

static herr_t driver_query(const H5FD_t *pub, unsigned long *flags)
{
    (void)pub;
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
             H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
    return 0;
}

static haddr_t driver_get_eoa(const H5FD_t *pub, H5FD_mem_t type)
{
    (void)type;
    return ((const driver_file *)pub)->eoa;
}

static herr_t driver_set_eoa(H5FD_t *pub, H5FD_mem_t type, haddr_t addr)
{
    (void)type;
    ((driver_file *)pub)->eoa = addr;
    return 0;
}

static haddr_t driver_get_eof(const H5FD_t *pub, H5FD_mem_t type)
{
    (void)type;
    return ((const driver_file *)pub)->eof;
}

/* Like HDF5's own driver: what lies past the end reads as zeros. */
static herr_t driver_read(H5FD_t *pub, H5FD_mem_t type, hid_t dxpl, haddr_t addr, size_t size, void *buffer)
{
    (void)type;
    (void)dxpl;
    const driver_file *file = (const driver_file *)pub;
    const haddr_t left = addr < file->eof ? file->eof - addr : 0;
    const size_t n = size < left ? size : (size_t)left;
    memset((char *)buffer + n, 0, size - n);
    return lvr_pread_all(file->sealed->fd, buffer, n, addr, file->sealed->path, NULL) == LVR_OK ? 0 : -1;
}

static herr_t driver_write(H5FD_t *pub, H5FD_mem_t type, hid_t dxpl, haddr_t addr, size_t size,
                           const void *buffer)
{
    (void)type;
    (void)dxpl;
    driver_file *file = (driver_file *)pub;
    lvr_sealed_file *sealed = file->sealed;
    if (!sealed->writing)
        return -1;
    if (sealed->failure.status != LVR_OK)
        return 0;
    if (lvr_pwrite_all(sealed->fd, buffer, size, addr, sealed->path, &sealed->failure) != LVR_OK)
        return 0;
    if (addr + size > file->eof)
        file->eof = addr + size;
    return 0;
}

static herr_t driver_truncate(H5FD_t *pub, hid_t dxpl, hbool_t closing)
{
    (void)dxpl;
    (void)closing;
    driver_file *file = (driver_file *)pub;
    lvr_sealed_file *sealed = file->sealed;
    if (!sealed->writing || sealed->failure.status != LVR_OK || file->eoa == file->eof)
        return 0;
    if (ftruncate(sealed->fd, (off_t)file->eoa) != 0)
        lvr_fail_errno(&sealed->failure, errno, "%s: cannot set the file's length to %" PRIu64 " bytes",
                       sealed->path, (uint64_t)file->eoa);
    else
        file->eof = file->eoa;
    return 0;
}

static const H5FD_class_t driver_class = {
#ifdef H5FD_CLASS_VERSION
    .version = H5FD_CLASS_VERSION,
    .value = 512, /* the first number left to applications */
#endif
    .name = "lever-sealed",
    .maxaddr = INT64_MAX,
    .fc_degree = H5F_CLOSE_STRONG,
    .fapl_size = sizeof(driver_info),
    .open = driver_open,
    .close = driver_close,
    .query = driver_query,
    .get_eoa = driver_get_eoa,
    .set_eoa = driver_set_eoa,
    .get_eof = driver_get_eof,
    .read = driver_read,
    .write = driver_write,
    .truncate = driver_truncate,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

/* An access list that routes a file through `f`, or a negative id. The driver stays registered until close_h5
 * is through: HDF5 1.10 calls the driver's close after it has dropped its own reference, which must not be
 * the last. */
static hid_t access_list(lvr_sealed_file *f)
{
    const driver_info info = {f};
    if (f->driver < 0)
        f->driver = H5FDregister(&driver_class);
    const hid_t fapl = f->driver >= 0 ? H5Pcreate(H5P_FILE_ACCESS) : -1;
    if (fapl < 0)
        return -1;
    if (H5Pset_driver(fapl, f->driver, &info) < 0 || H5Pset_fclose_degree(fapl, H5F_CLOSE_STRONG) < 0 ||
        H5Pset_libver_bounds(fapl, H5F_LIBVER_EARLIEST, H5F_LIBVER_LATEST) < 0) {
        H5Pclose(fapl);
        return -1;
    }
    return fapl;
}

static hid_t h5_create(lvr_sealed_file *f)
{
    const hid_t fapl = access_list(f);
    const hid_t fcpl = H5Pcreate(H5P_FILE_CREATE);
    hid_t h5 = -1;
    if (fapl >= 0 && fcpl >= 0 && H5Pset_userblock(fcpl, LVR_SEAL_BYTES) >= 0)
        h5 = H5Fcreate(f->path, H5F_ACC_TRUNC, fcpl, fapl);
    if (fcpl >= 0)
        H5Pclose(fcpl);
    if (fapl >= 0)
        H5Pclose(fapl);
    return h5;
}

static hid_t h5_open(lvr_sealed_file *f)
{
    const hid_t fapl = access_list(f);
    if (fapl < 0)
        return -1;
    const hid_t h5 = H5Fopen(f->path, H5F_ACC_RDONLY, fapl);
    H5Pclose(fapl);
    return h5;
}

/* ---- the user block
 * --------------------------------------------------------------------------------------------- */

static void put_le(uint8_t *at, uint64_t value, size_t n)
{
    for (size_t i = 0; i < n; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get_le(const uint8_t *at, size_t n)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static lvr_status payload_crc(int fd, uint64_t length, const char *path, uint32_t *ret_crc, lvr_error *err)
{
    const size_t step = (size_t)1 << 18;
    uint8_t *chunk = malloc(step);
    if (!chunk)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for checking the file", path);
    uint32_t crc = 0;
    lvr_status st = LVR_OK;
    for (uint64_t done = 0; done < length && st == LVR_OK;) {
        const size_t n = length - done < step ? (size_t)(length - done) : step;
        st = lvr_pread_all(fd, chunk, n, LVR_SEAL_BYTES + done, path, err);
        if (st == LVR_OK)
            crc = lvr_crc32c(crc, chunk, n);
        done += n;
    }
    free(chunk);
    if (st == LVR_OK)
        *ret_crc = crc;
    return st;
}

static lvr_status file_bytes(int fd, const char *path, uint64_t *ret, lvr_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return lvr_fail_errno(err, errno, "%s: cannot stat", path);
    if (!S_ISREG(st.st_mode))
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: expected a trace file, found %s", path,
                        S_ISDIR(st.st_mode) ? "a folder" : "something that is not a regular file");
    *ret = (uint64_t)st.st_size;
    return LVR_OK;
}

static lvr_status write_seal(lvr_sealed_file *f, lvr_error *err)
{
    uint64_t bytes = 0;
    uint32_t crc = 0;
    lvr_status st = file_bytes(f->fd, f->path, &bytes, err);
    if (st != LVR_OK)
        return st;
    if (bytes <= LVR_SEAL_BYTES)
        return lvr_fail(err, LVR_ERR_IO, "%s: HDF5 wrote nothing", f->path);
    st = payload_crc(f->fd, bytes - LVR_SEAL_BYTES, f->path, &crc, err);
    if (st != LVR_OK)
        return st;
    uint8_t block[LVR_SEAL_BYTES] = {0};
    memcpy(block + SEAL_MAGIC_AT, seal_magic, sizeof seal_magic);
    put_le(block + SEAL_VERSION_AT, SEAL_VERSION, 4);
    put_le(block + SEAL_SEGMENT_AT, f->id.segment, 4);
    put_le(block + SEAL_RECORDING_AT, f->id.recording, 8);
    put_le(block + SEAL_LENGTH_AT, bytes - LVR_SEAL_BYTES, 8);
    put_le(block + SEAL_CRC_AT, crc, 4);
    put_le(block + SEAL_SELF_CRC_AT, lvr_crc32c(0, block, SEAL_SELF_CRC_AT), 4);
    return lvr_pwrite_all(f->fd, block, sizeof block, 0, f->path, err);
}

static lvr_status refuse_foreign(const uint8_t *block, const char *path, lvr_error *err)
{
    static const uint8_t hdf5_magic[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    const bool is_hdf5 = memcmp(block, hdf5_magic, sizeof hdf5_magic) == 0;
    return lvr_fail(
        err, LVR_ERR_FORMAT,
        "%s: expected a lever trace (user block starting with \"LVRTRACE\"), found %s; give a file that "
        "`lever record` wrote",
        path, is_hdf5 ? "an HDF5 file of another program" : "another kind of file");
}

static lvr_status check_seal(lvr_sealed_file *f, lvr_error *err)
{
    uint64_t bytes = 0;
    lvr_status st = file_bytes(f->fd, f->path, &bytes, err);
    if (st != LVR_OK)
        return st;
    if (bytes < LVR_SEAL_BYTES)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: expected a lever trace of more than %u bytes, found %" PRIu64
                        " bytes; not a trace, or a copy that was cut short",
                        f->path, LVR_SEAL_BYTES, bytes);
    uint8_t block[LVR_SEAL_BYTES];
    st = lvr_pread_all(f->fd, block, sizeof block, 0, f->path, err);
    if (st != LVR_OK)
        return st;
    if (memcmp(block + SEAL_MAGIC_AT, seal_magic, sizeof seal_magic) != 0)
        return refuse_foreign(block, f->path, err);
    if (get_le(block + SEAL_SELF_CRC_AT, 4) != lvr_crc32c(0, block, SEAL_SELF_CRC_AT))
        return lvr_fail(
            err, LVR_ERR_FORMAT,
            "%s: the first 512 bytes are damaged (checksum mismatch); copy the trace again from where it "
            "was recorded",
            f->path);
    if (get_le(block + SEAL_VERSION_AT, 4) != SEAL_VERSION)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: user block version %u, this build reads version %u; use a newer lever", f->path,
                        (unsigned)get_le(block + SEAL_VERSION_AT, 4), SEAL_VERSION);
    const uint64_t length = get_le(block + SEAL_LENGTH_AT, 8);
    if (length != bytes - LVR_SEAL_BYTES)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: damaged: expected %" PRIu64 " bytes after the user block, found %" PRIu64
                        "; copy the trace again from where it was recorded",
                        f->path, length, bytes - LVR_SEAL_BYTES);
    uint32_t crc = 0;
    st = payload_crc(f->fd, length, f->path, &crc, err);
    if (st != LVR_OK)
        return st;
    if (crc != get_le(block + SEAL_CRC_AT, 4))
        return lvr_fail(
            err, LVR_ERR_FORMAT,
            "%s: damaged: expected CRC-32C %08x, found %08x; copy the trace again from where it was recorded",
            f->path, (unsigned)get_le(block + SEAL_CRC_AT, 4), crc);
    f->id.segment = (uint32_t)get_le(block + SEAL_SEGMENT_AT, 4);
    f->id.recording = get_le(block + SEAL_RECORDING_AT, 8);
    return LVR_OK;
}

/* ---- files
 * ------------------------------------------------------------------------------------------------------- */

static lvr_sealed_file *new_file(const char *path, int fd, bool writing)
{
    lvr_sealed_file *f = calloc(1, sizeof *f);
    char *copy = strdup(path);
    if (!f || !copy) {
        free(f);
        free(copy);
        return NULL;
    }
    f->fd = fd;
    f->writing = writing;
    f->path = copy;
    f->h5 = -1;
    f->driver = -1;
    return f;
}

static void close_h5(lvr_sealed_file *f)
{
    const lvr_h5_guard guard = lvr_h5_enter();
    if (f->h5 >= 0 && H5Fclose(f->h5) < 0 && f->writing && f->failure.status == LVR_OK)
        lvr_fail(&f->failure, LVR_ERR_IO, "%s: HDF5 could not finish the file", f->path);
    if (f->driver >= 0)
        H5FDunregister(f->driver);
    lvr_h5_leave(guard);
    f->h5 = f->driver = -1;
}

void lvr_sealed_close(lvr_sealed_file *f)
{
    if (!f)
        return;
    close_h5(f);
    close(f->fd);
    free(f->path);
    free(f);
}

void lvr_sealed_discard(lvr_sealed_file *f)
{
    if (!f)
        return;
    /* Nothing of it is wanted any more: spare the disk what HDF5 still has in its caches. */
    if (f->failure.status == LVR_OK)
        lvr_fail(&f->failure, LVR_ERR_IO, "%s: discarded", f->path);
    unlink(f->path);
    lvr_sealed_close(f);
}

lvr_status lvr_sealed_create(const char *temp_path, lvr_seal_id id, lvr_sealed_file **ret, lvr_error *err)
{
    const int fd = open(temp_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return lvr_fail_errno(err, errno, "%s: cannot create", temp_path);
    lvr_sealed_file *f = new_file(temp_path, fd, true);
    if (!f) {
        close(fd);
        unlink(temp_path);
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", temp_path);
    }
    f->id = id;
    const lvr_h5_guard guard = lvr_h5_enter();
    f->h5 = h5_create(f);
    lvr_h5_leave(guard);
    if (f->h5 < 0) {
        const lvr_status st =
            lvr_sealed_status(f, err) != LVR_OK
                ? f->failure.status
                : lvr_fail(err, LVR_ERR_IO, "%s: HDF5 could not create the file", temp_path);
        lvr_sealed_discard(f);
        return st;
    }
    *ret = f;
    return LVR_OK;
}

/* Best effort: some file systems cannot sync a folder, and the rename stands all the same. */
static void sync_folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    const int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(folder);
    if (fd < 0)
        return;
    fsync(fd);
    close(fd);
}

static lvr_status finish(lvr_sealed_file *f, const char *final_path, bool durable, lvr_error *err)
{
    close_h5(f);
    lvr_status st = lvr_sealed_status(f, err);
    if (st == LVR_OK)
        st = write_seal(f, err);
    if (st == LVR_OK && durable && fsync(f->fd) != 0)
        st = lvr_fail_errno(err, errno, "%s: cannot sync", f->path);
    if (st == LVR_OK && rename(f->path, final_path) != 0)
        st = lvr_fail_errno(err, errno, "%s: cannot rename to %s", f->path, final_path);
    return st;
}

lvr_status lvr_sealed_commit(lvr_sealed_file *f, const char *final_path, bool durable, lvr_error *err)
{
    const lvr_status st = finish(f, final_path, durable, err);
    if (st != LVR_OK) {
        lvr_sealed_discard(f);
        return st;
    }
    lvr_sealed_close(f);
    if (durable)
        sync_folder_of(final_path);
    return LVR_OK;
}

lvr_status lvr_sealed_open(const char *path, lvr_sealed_file **ret, lvr_error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return lvr_fail(err, LVR_ERR_IO,
                        "%s: no such trace; check the path (`lever record -o FILE` writes one)", path);
    if (fd < 0)
        return lvr_fail_errno(err, errno, "%s: cannot open", path);
    lvr_sealed_file *f = new_file(path, fd, false);
    if (!f) {
        close(fd);
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", path);
    }
    lvr_status st = check_seal(f, err);
    if (st == LVR_OK) {
        const lvr_h5_guard guard = lvr_h5_enter();
        f->h5 = h5_open(f);
        lvr_h5_leave(guard);
        if (f->h5 < 0)
            st = lvr_fail(err, LVR_ERR_FORMAT,
                          "%s: the checksum is right but HDF5 cannot open the file; it was written by "
                          "something else, or "
                          "by a newer HDF5",
                          path);
    }
    if (st != LVR_OK) {
        lvr_sealed_close(f);
        return st;
    }
    *ret = f;
    return LVR_OK;
}

hid_t lvr_sealed_h5(const lvr_sealed_file *f)
{
    return f->h5;
}

lvr_seal_id lvr_sealed_id(const lvr_sealed_file *f)
{
    return f->id;
}

const char *lvr_sealed_path(const lvr_sealed_file *f)
{
    return f->path;
}

lvr_status lvr_sealed_status(const lvr_sealed_file *f, lvr_error *err)
{
    if (f->failure.status == LVR_OK)
        return LVR_OK;
    return lvr_fail(err, f->failure.status, "%s", f->failure.msg);
}
