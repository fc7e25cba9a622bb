/* Preloaded, this stands before the functions of the C library through which bytes and names reach the disk, which
   SQLite calls as Python does. It kills the process at the n-th of them, just before or just after (`arm`), and keeps
   what a power cut would leave: the content of a file, the names in a folder, as of their last sync (`disk_watch`). */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static int left = 0, passed = 0, keeping = 0;
static char kept[4000];

void arm(int count) { left = count; }
int disk_ticks(void) { return passed; }
void disk_watch(const char *folder) { snprintf(kept, sizeof kept, "%s", folder); }

__attribute__((constructor)) static void watch_as_parent(void) {
    if (getenv("DISK_KEPT"))
        disk_watch(getenv("DISK_KEPT"));
}

static void tick(void) {
    if (keeping)
        return;
    passed++;
    if (left && --left == 0)
        kill(getpid(), SIGKILL);
}

/* Names a file or folder for good: numbers of inodes are given out again, hence the time it was made. */
int disk_identity(int folder, const char *path, char *out, size_t size) {
    struct statx of;
    int flags = *path ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH;
    if (statx(folder, path, flags, STATX_INO | STATX_BTIME | STATX_TYPE, &of))
        return -1;
    snprintf(out, size, "%c%llu-%lld-%u", S_ISDIR(of.stx_mode) ? 'd' : 'f', (unsigned long long)of.stx_ino,
             (long long)of.stx_btime.tv_sec, of.stx_btime.tv_nsec);
    return S_ISDIR(of.stx_mode);
}

/* Keeps a file's content or a folder's names (each behind its identity, all ending in NUL) under its identity. */
int disk_keep(const char *path) {
    char name[64], place[4100], draft[4110], buffer[65536];
    int is_folder = disk_identity(AT_FDCWD, path, name, sizeof name);
    if (!*kept || is_folder < 0)
        return -1;
    keeping = 1;
    snprintf(place, sizeof place, "%s/%s", kept, name);
    snprintf(draft, sizeof draft, "%s.tmp", place);
    FILE *out = fopen(draft, "w");
    if (is_folder) {
        DIR *folder = opendir(path);
        for (struct dirent *item; (item = readdir(folder));)
            if (strcmp(item->d_name, ".") && strcmp(item->d_name, "..") &&
                disk_identity(dirfd(folder), item->d_name, name, sizeof name) >= 0)
                fprintf(out, "%s%c%s%c", name, 0, item->d_name, 0);
        closedir(folder);
    } else {
        FILE *in = fopen(path, "r");
        for (size_t got; (got = fread(buffer, 1, sizeof buffer, in));)
            fwrite(buffer, 1, got, out);
        fclose(in);
    }
    fclose(out);
    rename(draft, place);
    keeping = 0;
    return 0;
}

static void keep_open(int file) {
    char link[64], path[4000];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (*kept && length > 0) {
        path[length] = 0;
        disk_keep(path);
    }
}

#define REAL(type, name, parameters)  \
    static type(*real) parameters;    \
    if (!real)                        \
        real = (type(*) parameters)dlsym(RTLD_NEXT, #name);

#define AROUND(type, name, parameters, arguments) \
    type name parameters {                        \
        REAL(type, name, parameters)              \
        tick();                                   \
        type done = real arguments;               \
        tick();                                   \
        return done;                              \
    }

#define SYNC(name)                 \
    int name(int file) {           \
        REAL(int, name, (int file))\
        tick();                    \
        int done = real(file);     \
        keep_open(file);           \
        tick();                    \
        return done;               \
    }

SYNC(fsync)
SYNC(fdatasync)
AROUND(int, rename, (const char *from, const char *to), (from, to))
AROUND(int, renameat2, (int in, const char *from, int at, const char *to, unsigned how), (in, from, at, to, how))
AROUND(int, unlink, (const char *path), (path))
AROUND(int, ftruncate, (int file, off_t size), (file, size))
AROUND(int, ftruncate64, (int file, off64_t size), (file, size))
AROUND(ssize_t, write, (int file, const void *from, size_t size), (file, from, size))
AROUND(ssize_t, pwrite, (int file, const void *from, size_t size, off_t at), (file, from, size, at))
AROUND(ssize_t, pwrite64, (int file, const void *from, size_t size, off64_t at), (file, from, size, at))
