/* One page of a file mapped, touched and unmapped in a loop for a fixed time of the processor: `touch_loop FILE r|w SECONDS`
 * prints how often in a second. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double used(void)
{
	struct timespec time;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int file = open(argv[1], O_RDWR | O_CREAT, 0600);
	if (file < 0 || ftruncate(file, 4096))
		return 1;
	int writes = argv[2][0] == 'w';
	double start = used(), end = start + atof(argv[3]), now = start;
	unsigned long touches = 0;
	while (now < end) {
		for (int i = 0; i < 1000; i++) {
			volatile char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

			if (page == MAP_FAILED)
				return 1;
			if (writes)
				*page = 1;
			else
				(void)*page;
			munmap((void *)page, 4096);
		}
		touches += 1000;
		now = used();
	}
	printf("%f\n", touches / (now - start));
	return 0;
}
