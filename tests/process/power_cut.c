/* What a disk would still hold if the power failed now.
 *
 * Preloaded into a process, this watches the folder $FL_CUT_WATCH. Whenever the process flushes a file in it, the bytes
 * that the file has at that moment are copied to $FL_CUT_SHADOW/<inode>; whenever it flushes the folder, the folder's
 * names are written to $FL_CUT_SHADOW/names, a line "<inode> <name>" each. That is all that POSIX promises. With
 * $FL_CUT_KEEPS_NAMES=1 a flushed file keeps its name too, as the journals of Linux's file systems have it.
 *
 * While the file $FL_CUT_SHADOW/fails exists, every flush in the folder fails, as on a broken disk; while
 * $FL_CUT_SHADOW/dies does, the process is killed when it begins one.
 *
 * Never: a watched file opened, since closing it would drop the locks that SQLite has on it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char shadow_path[2][PATH_MAX];

static const char *in_shadow(int which, const char *name) {
    snprintf(shadow_path[which], PATH_MAX, "%s/%s", getenv("FL_CUT_SHADOW"), name);
    return shadow_path[which];
}

static void put_in_place(const char *name) {
    rename(in_shadow(0, "new"), in_shadow(1, name));
}

static void copy_bytes(int fd, ino_t inode) {
    char buffer[65536], name[32];
    int out = open(in_shadow(0, "new"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    off_t at = 0;
    ssize_t size;
    while ((size = pread(fd, buffer, sizeof buffer, at)) > 0) {
        if (write(out, buffer, size) != size) abort();
        at += size;
    }
    close(out);
    snprintf(name, sizeof name, "%lu", (unsigned long)inode);
    put_in_place(name);
}

static void write_names(const char *folder) {
    DIR *entries = opendir(folder);
    FILE *out = fopen(in_shadow(0, "new"), "we");
    struct dirent *entry;
    if (entries == NULL || out == NULL) abort();
    while ((entry = readdir(entries)) != NULL)
        if (entry->d_type == DT_REG) fprintf(out, "%lu %s\n", (unsigned long)entry->d_ino, entry->d_name);
    closedir(entries);
    fclose(out);
    put_in_place("names");
}

static void keep_name(const char *name, ino_t inode) {
    char line[PATH_MAX];
    FILE *in = fopen(in_shadow(0, "names"), "re"), *out = fopen(in_shadow(1, "new"), "we");
    if (out == NULL) abort();
    while (in != NULL && fgets(line, sizeof line, in) != NULL) {
        line[strcspn(line, "\n")] = 0;
        if (strcmp(strchr(line, ' ') + 1, name) != 0) fprintf(out, "%s\n", line);
    }
    fprintf(out, "%lu %s\n", (unsigned long)inode, name);
    if (in != NULL) fclose(in);
    fclose(out);
    put_in_place("names");
}

/* Keep what a flush of this file makes durable; return whether the flush is to fail. */
static int remember(int fd) {
    const char *folder = getenv("FL_CUT_WATCH");
    char link[64], path[PATH_MAX];
    struct stat status;
    ssize_t size;
    size_t length;
    int lock;
    if (folder == NULL || fstat(fd, &status) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if ((size = readlink(link, path, sizeof path - 1)) < 0) return 0;
    path[size] = 0;
    length = strlen(folder);
    if (strncmp(path, folder, length) != 0 || (path[length] != 0 && path[length] != '/')) return 0;
    if (access(in_shadow(0, "fails"), F_OK) == 0) return 1;
    if (access(in_shadow(0, "dies"), F_OK) == 0) kill(getpid(), SIGKILL);
    lock = open(in_shadow(0, "lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    flock(lock, LOCK_EX);
    if (S_ISDIR(status.st_mode) && path[length] == 0) write_names(folder);
    if (S_ISREG(status.st_mode)) {
        copy_bytes(fd, status.st_ino);
        if (getenv("FL_CUT_KEEPS_NAMES") != NULL && status.st_nlink > 0) keep_name(path + length + 1, status.st_ino);
    }
    close(lock);
    return 0;
}

static int flush(int fd, const char *call) {
    if (remember(fd)) {
        errno = EIO;
        return -1;
    }
    return ((int (*)(int))dlsym(RTLD_NEXT, call))(fd);
}

int fsync(int fd) {
    return flush(fd, "fsync");
}

int fdatasync(int fd) {
    return flush(fd, "fdatasync");
}
