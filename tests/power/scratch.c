/* A folder for a test, gone with it. */
#include "scratch.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "command.h"

void scratch_create(char folder[SCRATCH_BYTES])
{
    snprintf(folder, SCRATCH_BYTES, "/tmp/evenkeel-power-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status, (void)type, (void)walk;
    return remove(path);
}

void scratch_remove(const char *folder)
{
    assert_int_equal(nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}

void scratch_write(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0755);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

unsigned scratch_entries(const char *folder)
{
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    unsigned count = 0;
    for (struct dirent *entry; (entry = readdir(directory));)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(directory);
    return count;
}

struct standin *standin_create(const char *folder, uint32_t count)
{
    char path[256];
    snprintf(path, sizeof path, "%s/driver", folder);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(file >= 0);
    assert_int_equal(ftruncate(file, sizeof(struct standin)), 0);
    struct standin *standin = mmap(NULL, sizeof *standin, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    assert_true(standin != MAP_FAILED);
    close(file);
    standin->count = count;
    for (uint32_t i = 0; i < count; i++) {
        struct standin_device *device = &standin->device[i];
        snprintf(device->uuid, sizeof device->uuid, "GPU-0000000%u-feed-beef-cafe-0123456789ab", i);
        device->least = 200000;
        device->greatest = 700000;
        device->otherwise = 500000;
        device->limit = 500000;
        device->usage = 432100;
    }
    assert_int_equal(setenv("NVML_STANDIN", path, 1), 0);
    return standin;
}

void standin_destroy(struct standin *standin)
{
    munmap(standin, sizeof *standin);
}

double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void sleep_seconds(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

int run_power(const char *const *arguments, char text[OUTPUT_BYTES])
{
    outcome got = run_command(arguments);
    snprintf(text, OUTPUT_BYTES, "%.*s%.*s", OUTPUT_BYTES / 2 - 1, got.output, OUTPUT_BYTES / 2 - 1, got.errors);
    return got.status;
}
