/* Kills the process at the n-th time that something reaches the disk, just before or just after it: preloaded, it stands
   before the C library's functions, which SQLite calls as Python does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

static int left = 0;

void arm(int count) { left = count; }

static void tick(void) {
    if (left && --left == 0)
        kill(getpid(), SIGKILL);
}

#define AROUND(type, name, parameters, arguments)               \
    type name parameters {                                      \
        static type (*real) parameters;                         \
        if (!real)                                              \
            real = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
        tick();                                                 \
        type done = real arguments;                             \
        tick();                                                 \
        return done;                                            \
    }

AROUND(int, fsync, (int file), (file))
AROUND(int, fdatasync, (int file), (file))
AROUND(int, rename, (const char *from, const char *to), (from, to))
AROUND(int, unlink, (const char *path), (path))
AROUND(int, ftruncate, (int file, off_t size), (file, size))
AROUND(int, ftruncate64, (int file, off64_t size), (file, size))
AROUND(ssize_t, write, (int file, const void *from, size_t size), (file, from, size))
AROUND(ssize_t, pwrite, (int file, const void *from, size_t size, off_t at), (file, from, size, at))
AROUND(ssize_t, pwrite64, (int file, const void *from, size_t size, off64_t at), (file, from, size, at))
