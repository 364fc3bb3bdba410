/* Two threads change different words of the same pages of a file, one through a shared mapping, one with pwrite(2).
 * Says how many words are missing in the mapping, to pread(2), and after all has been synced and opened again. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, NR_PAGES = 256, AT_WRITTEN = 512, AT_STORED = 2048 };
static const uint64_t WRITTEN = 0x5752495454454e21, STORED = 0x53544f5245442121;

static int file;
static char *map;
static pthread_barrier_t start;

static void *write_words(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&start);
	for (long page = 0; page < NR_PAGES; page++)
		if (pwrite(file, &WRITTEN, sizeof WRITTEN, page * PAGE + AT_WRITTEN) != sizeof WRITTEN)
			exit(2);
	return NULL;
}

static void *store_words(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&start);
	for (long page = 0; page < NR_PAGES; page++)
		*(volatile uint64_t *)(map + page * PAGE + AT_STORED) = STORED;
	return NULL;
}

static int missing_to_pread(void)
{
	int missing = 0;
	for (long page = 0; page < NR_PAGES; page++) {
		uint64_t word = 0;
		missing += pread(file, &word, sizeof word, page * PAGE + AT_WRITTEN) != sizeof word || word != WRITTEN;
		missing += pread(file, &word, sizeof word, page * PAGE + AT_STORED) != sizeof word || word != STORED;
	}
	return missing;
}

static int missing_in_map(void)
{
	int missing = 0;
	for (long page = 0; page < NR_PAGES; page++) {
		missing += *(uint64_t *)(map + page * PAGE + AT_WRITTEN) != WRITTEN;
		missing += *(uint64_t *)(map + page * PAGE + AT_STORED) != STORED;
	}
	return missing;
}

int main(int nr_arguments, char **arguments)
{
	pthread_t writer, storer;
	if (nr_arguments != 2 || (file = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0644)) < 0 ||
	    ftruncate(file, NR_PAGES * PAGE))
		return 2;
	map = mmap(NULL, NR_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (map == MAP_FAILED)
		return 2;
	pthread_barrier_init(&start, NULL, 2);
	pthread_create(&writer, NULL, write_words, NULL);
	pthread_create(&storer, NULL, store_words, NULL);
	pthread_join(writer, NULL);
	pthread_join(storer, NULL);
	int in_map = missing_in_map(), to_pread = missing_to_pread();
	if (msync(map, NR_PAGES * PAGE, MS_SYNC) || fsync(file) || close(file) ||
	    (file = open(arguments[1], O_RDONLY)) < 0)
		return 2;
	printf("missing %d %d %d\n", in_map, to_pread, missing_to_pread());
	return 0;
}
