/* Loaded with LD_PRELOAD: counts the calls to the file system below one directory, makes one of them fail, and records
 * them with their data. Controlled by the exported functions disk_*, which a test calls through ctypes. Several processes
 * may record into one file; each has to open it itself. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ONCE = 1, ONWARD = 2, SHORT = 3 };
enum { FILES = 65536, LONG = 4096 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char root[LONG];
static int armed, mode, error_number, full;
static long counted, fails_at;
static int record = -1;
static char failed_call[64];
static unsigned char watched[FILES]; /* descriptors of files below the directory */

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}
#define REAL(type, name, ...) \
    static type (*call)(__VA_ARGS__); \
    if (!call) call = (type (*)(__VA_ARGS__))real(name)

/* The path of a call that names a file relative to a directory. */
static const char *full_path(int directory, const char *path, char *buffer) {
    if (!path) return "";
    if (path[0] == '/') return path;
    if (directory == AT_FDCWD) {
        if (!getcwd(buffer, LONG / 2)) return path;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t length = readlink(link, buffer, LONG / 2);
        if (length < 0) return path;
        buffer[length] = 0;
    }
    size_t length = strlen(buffer);
    snprintf(buffer + length, LONG - length, "/%s", path);
    return buffer;
}

static int is_inside(const char *path) {
    size_t length = strlen(root);
    return armed && length && !strncmp(path, root, length);
}

static int is_watched(int descriptor) { return armed && descriptor >= 0 && descriptor < FILES && watched[descriptor]; }

/* Whether this call is the one that fails. 2: it is a write that takes half of its data. */
static int turn(const char *name, int is_write) {
    pthread_mutex_lock(&mutex);
    long number = ++counted;
    int fails = 0;
    if (fails_at && number == fails_at) fails = mode == SHORT ? (is_write ? 2 : 0) : 1;
    if (fails_at && number > fails_at && (mode == ONWARD || (mode == SHORT && full && is_write))) fails = 1;
    if (fails == 2) full = 1;
    if (fails && !failed_call[0]) snprintf(failed_call, sizeof failed_call, "%s", name);
    pthread_mutex_unlock(&mutex);
    if (fails == 1) errno = error_number;
    return fails;
}

static unsigned long inode_of(const char *path) {
    struct stat found;
    return syscall(SYS_newfstatat, AT_FDCWD, path, &found, AT_SYMLINK_NOFOLLOW) ? 0 : found.st_ino;
}

static unsigned long inode_at(int descriptor) {
    struct stat found;
    return syscall(SYS_fstat, descriptor, &found) ? 0 : found.st_ino;
}

/* Around a call and its note, so that the notes of all threads and processes are in the order of their calls. */
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;

static int begin(int recorded) {
    recorded = recorded && record >= 0;
    if (recorded) pthread_mutex_lock(&order), syscall(SYS_flock, record, LOCK_EX);
    return recorded;
}

static void end(int recorded) {
    int before = errno;
    if (recorded) syscall(SYS_flock, record, LOCK_UN), pthread_mutex_unlock(&order);
    errno = before;
}

/* "name inode process offset length path" NUL "path" NUL and the data. */
static void note(const char *name, unsigned long inode, long offset, const char *path, const char *target,
                 const void *data, size_t length) {
    if (record < 0) return;
    int before = errno;
    char line[3 * LONG];
    int size = snprintf(line, sizeof line, "%s %lu %ld %ld %zu %s%c%s%c", name, inode, (long)getpid(), offset, length,
                        path, 0, target, 0);
    syscall(SYS_write, record, line, size);
    if (length) syscall(SYS_write, record, data, length);
    errno = before;
}

/* -- controls */

void disk_arm(const char *directory, long call, int number, int how) {
    memset(watched, 0, sizeof watched);
    snprintf(root, sizeof root, "%s", directory);
    counted = 0, fails_at = call, error_number = number, mode = how, full = 0, failed_call[0] = 0, armed = 1;
}

long disk_disarm(void) {
    armed = 0;
    return counted;
}

const char *disk_failed(void) { return failed_call; }

void disk_record(const char *path) {
    record = path[0] ? (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
}

void disk_mark(const char *word) {
    int recorded = begin(1);
    note("mark", 0, 0, word, "", "", 0);
    end(recorded);
}

/* -- opening */

static int opened(const char *name, int directory, const char *path, int flags, mode_t rights) {
    char buffer[LONG];
    const char *place = armed ? full_path(directory, path, buffer) : "";
    int inside = is_inside(place);
    if (inside && turn(name, 0)) return -1;
    int recorded = begin(inside && (flags & (O_CREAT | O_TRUNC)));
    unsigned long before = inside ? inode_of(place) : 0;
    int found = (int)syscall(SYS_openat, directory, path, flags, rights);
    if (found >= 0 && found < FILES) watched[found] = (unsigned char)inside;
    if (found >= 0 && inside) {
        if ((flags & O_CREAT) && !before) note("create", inode_at(found), 0, place, "", "", 0);
        if ((flags & O_TRUNC) && before) note("truncate", before, 0, place, "", "", 0);
    }
    end(recorded);
    return found;
}

#define RIGHTS \
    mode_t rights = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { \
        va_list list; \
        va_start(list, flags); \
        rights = va_arg(list, mode_t); \
        va_end(list); \
    }

int open(const char *path, int flags, ...) { RIGHTS return opened("open", AT_FDCWD, path, flags, rights); }
int open64(const char *path, int flags, ...) { RIGHTS return opened("open", AT_FDCWD, path, flags, rights); }
int openat(int directory, const char *path, int flags, ...) { RIGHTS return opened("openat", directory, path, flags, rights); }
int openat64(int directory, const char *path, int flags, ...) { RIGHTS return opened("openat", directory, path, flags, rights); }

int close(int descriptor) {
    int fails = is_watched(descriptor) && turn("close", 0);
    int before = errno;
    if (descriptor >= 0 && descriptor < FILES) watched[descriptor] = 0;
    int done = (int)syscall(SYS_close, descriptor);
    if (fails) errno = before;
    return fails ? -1 : done;
}

/* -- data */

static ssize_t written(const char *name, int descriptor, const void *data, size_t size, long place) {
    if (is_watched(descriptor)) {
        int fails = turn(name, 1);
        if (fails == 1) return -1;
        if (fails == 2 && size > 1) size /= 2;
    }
    int recorded = begin(is_watched(descriptor));
    ssize_t done = place < 0 ? syscall(SYS_write, descriptor, data, size)
                             : syscall(SYS_pwrite64, descriptor, data, size, place);
    if (done > 0 && recorded) {
        long offset = place < 0 ? syscall(SYS_lseek, descriptor, 0, SEEK_CUR) - done : place;
        note("write", inode_at(descriptor), offset, "", "", data, (size_t)done);
    }
    end(recorded);
    return done;
}

ssize_t write(int descriptor, const void *data, size_t size) { return written("write", descriptor, data, size, -1); }
ssize_t pwrite(int descriptor, const void *data, size_t size, off_t place) { return written("pwrite", descriptor, data, size, place); }
ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t place) { return written("pwrite", descriptor, data, size, place); }

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    if (!is_watched(descriptor)) return syscall(SYS_writev, descriptor, parts, count);
    for (int i = 0; i < count; i++)
        if (parts[i].iov_len) return written("writev", descriptor, parts[i].iov_base, parts[i].iov_len, -1);
    return 0;
}

/* Callers fall back to read and write, which are recorded. */
ssize_t sendfile(int out, int in, off_t *offset, size_t count) {
    if (is_watched(out)) { errno = turn("sendfile", 1) == 1 ? error_number : EINVAL; return -1; }
    return syscall(SYS_sendfile, out, in, offset, count);
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t count) { return sendfile(out, in, (off_t *)offset, count); }
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t count, unsigned flags) {
    if (is_watched(out)) { errno = turn("copy_file_range", 1) == 1 ? error_number : EOPNOTSUPP; return -1; }
    return syscall(SYS_copy_file_range, in, from, out, to, count, flags);
}

int ftruncate(int descriptor, off_t size) {
    if (is_watched(descriptor) && turn("ftruncate", 0)) return -1;
    int recorded = begin(is_watched(descriptor));
    int done = (int)syscall(SYS_ftruncate, descriptor, size);
    if (!done && recorded) note("truncate", inode_at(descriptor), size, "", "", "", 0);
    end(recorded);
    return done;
}
int ftruncate64(int descriptor, off64_t size) { return ftruncate(descriptor, size); }

static int synced(const char *name, int descriptor, long number) {
    if (is_watched(descriptor) && turn(name, 0)) return -1;
    int recorded = begin(is_watched(descriptor));
    int done = (int)syscall(number, descriptor);
    if (!done && recorded) note("fsync", inode_at(descriptor), 0, "", "", "", 0);
    end(recorded);
    return done;
}
int fsync(int descriptor) { return synced("fsync", descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return synced("fdatasync", descriptor, SYS_fdatasync); }

ssize_t read(int descriptor, void *data, size_t size) {
    if (is_watched(descriptor) && turn("read", 0)) return -1;
    return syscall(SYS_read, descriptor, data, size);
}

/* -- names */

static int renamed(const char *name, int from, const char *source, int to, const char *target, unsigned flags) {
    char one[LONG], two[LONG];
    const char *old = armed ? full_path(from, source, one) : "", *new = armed ? full_path(to, target, two) : "";
    int inside = is_inside(old) || is_inside(new);
    if (inside && turn(name, 0)) return -1;
    int recorded = begin(inside);
    int done = (int)syscall(SYS_renameat2, from, source, to, target, flags);
    if (!done && inside) note("rename", inode_of(new), 0, old, new, "", 0);
    end(recorded);
    return done;
}
int rename(const char *old, const char *new) { return renamed("rename", AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new) { return renamed("renameat", from, old, to, new, 0); }
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) { return renamed("renameat2", from, old, to, new, flags); }

static int removed(const char *name, int directory, const char *path, int flags) {
    char buffer[LONG];
    const char *place = armed ? full_path(directory, path, buffer) : "";
    int inside = is_inside(place);
    if (inside && turn(name, 0)) return -1;
    int recorded = begin(inside);
    unsigned long before = inside ? inode_of(place) : 0;
    int done = (int)syscall(SYS_unlinkat, directory, path, flags);
    if (!done && inside) note("remove", before, 0, place, "", "", 0);
    end(recorded);
    return done;
}
int unlink(const char *path) { return removed("unlink", AT_FDCWD, path, 0); }
int unlinkat(int directory, const char *path, int flags) { return removed("unlinkat", directory, path, flags); }
int rmdir(const char *path) { return removed("rmdir", AT_FDCWD, path, AT_REMOVEDIR); }

static int made(const char *name, int directory, const char *path, mode_t rights) {
    char buffer[LONG];
    const char *place = armed ? full_path(directory, path, buffer) : "";
    int inside = is_inside(place);
    if (inside && turn(name, 0)) return -1;
    int recorded = begin(inside);
    int done = (int)syscall(SYS_mkdirat, directory, path, rights);
    if (!done && inside) note("mkdir", inode_of(place), 0, place, "", "", 0);
    end(recorded);
    return done;
}
int mkdir(const char *path, mode_t rights) { return made("mkdir", AT_FDCWD, path, rights); }
int mkdirat(int directory, const char *path, mode_t rights) { return made("mkdirat", directory, path, rights); }

static int linked(const char *name, int from, const char *source, int to, const char *target, int flags) {
    char one[LONG], two[LONG];
    const char *old = armed ? full_path(from, source, one) : "", *new = armed ? full_path(to, target, two) : "";
    if (is_inside(new) && turn(name, 0)) return -1;
    int recorded = begin(is_inside(new));
    int done = (int)syscall(SYS_linkat, from, source, to, target, flags);
    if (!done && is_inside(new)) note("link", inode_of(new), 0, old, new, "", 0);
    end(recorded);
    return done;
}
int link(const char *old, const char *new) { return linked("link", AT_FDCWD, old, AT_FDCWD, new, 0); }
int linkat(int from, const char *old, int to, const char *new, int flags) { return linked("linkat", from, old, to, new, flags); }

/* -- questions */

#define ASKS(name, path, ...) \
    char buffer[LONG]; \
    if (is_inside(armed ? full_path(AT_FDCWD, path, buffer) : "") && turn(name, 0)) return __VA_ARGS__;

int stat(const char *path, struct stat *found) { ASKS("stat", path, -1) return (int)syscall(SYS_newfstatat, AT_FDCWD, path, found, 0); }
int stat64(const char *path, struct stat64 *found) { ASKS("stat", path, -1) return (int)syscall(SYS_newfstatat, AT_FDCWD, path, found, 0); }
int lstat(const char *path, struct stat *found) { ASKS("lstat", path, -1) return (int)syscall(SYS_newfstatat, AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW); }
int lstat64(const char *path, struct stat64 *found) { ASKS("lstat", path, -1) return (int)syscall(SYS_newfstatat, AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW); }
int fstat(int descriptor, struct stat *found) {
    if (is_watched(descriptor) && turn("fstat", 0)) return -1;
    return (int)syscall(SYS_fstat, descriptor, found);
}
int fstat64(int descriptor, struct stat64 *found) { return fstat(descriptor, (struct stat *)found); }

static int stat_at(int directory, const char *path, void *found, int flags) {
    char buffer[LONG];
    if (is_inside(armed ? full_path(directory, path, buffer) : "") && turn("fstatat", 0)) return -1;
    return (int)syscall(SYS_newfstatat, directory, path, found, flags);
}
int fstatat(int directory, const char *path, struct stat *found, int flags) { return stat_at(directory, path, found, flags); }
int fstatat64(int directory, const char *path, struct stat64 *found, int flags) { return stat_at(directory, path, found, flags); }

int statvfs(const char *path, struct statvfs *found) {
    REAL(int, "statvfs", const char *, struct statvfs *);
    ASKS("statvfs", path, -1)
    return call(path, found);
}
int statvfs64(const char *path, struct statvfs64 *found) {
    REAL(int, "statvfs64", const char *, struct statvfs64 *);
    ASKS("statvfs", path, -1)
    return call(path, found);
}
DIR *opendir(const char *path) {
    REAL(DIR *, "opendir", const char *);
    ASKS("opendir", path, NULL)
    return call(path);
}
DIR *fdopendir(int descriptor) {
    REAL(DIR *, "fdopendir", int);
    if (is_watched(descriptor) && turn("fdopendir", 0)) return NULL;
    return call(descriptor);
}
