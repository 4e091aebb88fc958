/* Progress and events on standard output. */
#include "train/display.h"

#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Whether somebody sees one line written over another. Open MPI 4 gives ranks a terminal that nobody looks at and
 * copies what they write to where mpirun writes, a file perhaps: that terminal has no width. */
static bool is_watched(void)
{
    struct winsize window;
    return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
}

ek_display ek_display_open(bool quiet, const char *parallelism)
{
    return (ek_display){.quiet = quiet, .parallelism = parallelism, .terminal = is_watched()};
}

/* Whether standard output takes text without making the launching thread wait: it has ranks to watch. */
static bool can_show(const ek_display *display)
{
    struct pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return !display->quiet && poll(&output, 1, 0) == 1 && output.revents & POLLOUT;
}

/* "TP4+TP3"; more than two replicas of the same degree in a row are counted: "6xTP4+TP3". */
static void describe_replicas(const ek_display *display, const ek_membership *membership, char *text, size_t size)
{
    uint32_t replicas = ek_membership_job(membership)->replicas;
    size_t length = 0;
    text[0] = '\0';
    for (uint32_t r = 0, next; r < replicas && length + 1 < size; r = next) {
        uint32_t degree = ek_membership_degree(membership, r);
        for (next = r; next < replicas && ek_membership_degree(membership, next) == degree; next++)
            ;
        char count[16] = "";
        if (next - r > 2)
            snprintf(count, sizeof count, "%ux", next - r);
        for (uint32_t i = 0; i < (next - r > 2 ? 1 : next - r) && length + 1 < size; i++)
            length += (size_t)snprintf(text + length, size - length, degree ? "%s%s%s%u" : "%s%sretired",
                                       length ? "+" : "", count, display->parallelism, degree);
    }
}

void ek_display_job(ek_display *display, const ek_config *config, const ek_membership *membership)
{
    char replicas[128];
    if (!can_show(display))
        return;
    describe_replicas(display, membership, replicas, sizeof replicas);
    printf("training %.1f M parameters on %s: %llu steps of %u samples, %llu tokens\n",
           1e-6 * (double)ek_model_parameters(&config->model), replicas, (unsigned long long)config->train.steps,
           config->batch.global, (unsigned long long)config->batch.global * config->model.sequence);
    fflush(stdout);
}

/* A line that is longer than the terminal is wide could not be written over. */
static int room_on_line(const ek_display *display)
{
    struct winsize window;
    if (!display->terminal || ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col == 0)
        return 1000;
    return window.ws_col - 1;
}

void ek_display_step(ek_display *display, const ek_step_record *step, uint64_t steps, double seconds,
                     double left_seconds, const ek_membership *membership)
{
    char replicas[128], line[320];
    if (!can_show(display))
        return;
    describe_replicas(display, membership, replicas, sizeof replicas);
    snprintf(line, sizeof line, "step %*llu/%llu  loss %.6f  %8.0f tokens/s  %s  %.0f s left",
             snprintf(NULL, 0, "%llu", (unsigned long long)steps), (unsigned long long)step->step,
             (unsigned long long)steps, step->loss, (double)step->tokens / seconds, replicas, left_seconds);
    printf("%s%.*s%s", display->terminal ? "\r\033[K" : "", room_on_line(display), line, display->terminal ? "" : "\n");
    display->line_open = display->terminal;
    fflush(stdout);
}

void ek_display_event(ek_display *display, const char *text)
{
    if (!can_show(display))
        return;
    printf("%s%s\n", display->line_open ? "\n" : "", text);
    display->line_open = false;
    fflush(stdout);
}
