/* Does what a list says: lines of an operation and a path; nothing is parsed or kept. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char sink[8192];

static void take(char operation, const char *path) {
    struct stat found;
    if (operation == 'l') {
        (void)!readlink(path, sink, sizeof sink);
    } else if (operation == 'e') {
        (void)!stat(path, &found);
    } else if (operation == 'd') {
        DIR *directory = opendir(path);
        if (directory) {
            while (readdir(directory)) {
            }
            closedir(directory);
        }
    } else {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            (void)!read(fd, sink, sizeof sink);
            close(fd);
        }
    }
}

/* `list` is what `operations` bytes of NUL-ended entries say: an operation, then the path. */
void scan(const char *list, long size) {
    for (const char *at = list; at < list + size; at += strlen(at) + 1) {
        take(at[0], at + 1);
    }
}
