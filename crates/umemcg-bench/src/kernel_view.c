/* What the kernel caches of files, and what a mapping of one costs. Needs no library of umemcg, so that it is an independent view.
 *
 * `kernel_view watch FILE...` says `ready`, counts the pages that the kernel has of all files with cachestat(2) again and
 * again until its input ends, and prints the least, the most and the number of counts.
 *
 * `kernel_view map FILE LOOPS` maps a file, copies each of its pages once in random order, then LOOPS times more, and prints
 * the nanoseconds of a page the first time and later, and the sum of the first words of all pages. */
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NR_CACHESTAT 451
#define PAGE 4096

struct range { uint64_t off, len; };
struct counts { uint64_t cache, dirty, writeback, evicted, recently_evicted; };

static int watch(char **files, int nr)
{
	int *open_files = calloc(nr, sizeof(int));
	uint64_t least = UINT64_MAX, most = 0, looks = 0;
	struct pollfd input = { .fd = 0, .events = POLLIN };

	if (!open_files)
		return 1;
	for (int at = 0; at < nr; at++)
		if ((open_files[at] = open(files[at], O_RDONLY)) < 0)
			return perror(files[at]), 1;
	puts("ready");
	fflush(stdout);
	do {
		uint64_t sum = 0;

		for (int at = 0; at < nr; at++) {
			struct range whole = { 0, 0 };
			struct counts counts;

			if (syscall(NR_CACHESTAT, open_files[at], &whole, &counts, 0))
				return perror("cachestat"), 3;
			sum += counts.cache;
		}
		least = sum < least ? sum : least;
		most = sum > most ? sum : most;
		looks++;
	} while (poll(&input, 1, 1) == 0);
	printf("%lu %lu %lu\n", (unsigned long)least, (unsigned long)most, (unsigned long)looks);
	return 0;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static int map(const char *name, int loops)
{
	int file = open(name, O_RDONLY);
	struct stat stat;
	char page[PAGE];
	uint64_t sum = 0, state = 0x9e3779b97f4a7c15;

	if (file < 0 || fstat(file, &stat))
		return perror(name), 1;
	size_t nr = stat.st_size / PAGE;
	uint32_t *order = malloc(nr * sizeof(*order));
	char *bytes = mmap(NULL, nr * PAGE, PROT_READ, MAP_SHARED, file, 0);

	if (!order || bytes == MAP_FAILED)
		return perror("mmap"), 1;
	/* As fio maps for random reads. */
	madvise(bytes, nr * PAGE, MADV_RANDOM);
	for (size_t at = 0; at < nr; at++)
		order[at] = at;
	for (size_t at = nr; at > 1; at--) {
		state ^= state << 13, state ^= state >> 7, state ^= state << 17;
		size_t other = state % at;
		uint32_t kept = order[at - 1];

		order[at - 1] = order[other];
		order[other] = kept;
	}
	double start = now(), first = 0;
	for (int loop = 0; loop <= loops; loop++) {
		for (size_t at = 0; at < nr; at++) {
			memcpy(page, bytes + (size_t)order[at] * PAGE, PAGE);
			asm volatile("" : : "r"(page) : "memory");
			if (loop == loops)
				sum += *(uint64_t *)page;
		}
		if (loop == 0)
			first = now() - start, start = now();
	}
	printf("%f %f %lu\n", first / nr, loops ? (now() - start) / nr / loops : 0, (unsigned long)sum);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "watch"))
		return watch(argv + 2, argc - 2);
	if (argc == 4 && !strcmp(argv[1], "map"))
		return map(argv[2], atoi(argv[3]));
	return 2;
}
