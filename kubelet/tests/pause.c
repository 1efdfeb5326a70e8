/* The first process of a test sandbox: reaps children until SIGTERM or SIGINT ends it. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { _exit(0); }

static void reap(int signal) {
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(void) {
    struct sigaction on_end = {.sa_handler = end};
    struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
    if (sigaction(SIGTERM, &on_end, NULL) || sigaction(SIGINT, &on_end, NULL)) return 1;
    if (sigaction(SIGCHLD, &on_child, NULL)) return 1;
    for (;;) pause();
}
