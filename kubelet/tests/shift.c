// Shifts the wall clock of a process by the seconds in the file that CLOCK_SHIFT names: for
// LD_PRELOAD.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    long result = syscall(SYS_clock_gettime, clock, time);
    const char *name = getenv("CLOCK_SHIFT");
    if (result != 0 || clock != CLOCK_REALTIME || name == NULL) {
        return result;
    }
    char text[32] = "";
    int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) > 0) {
            time->tv_sec += atol(text);
        }
        close(file);
    }
    return 0;
}
