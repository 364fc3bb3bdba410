// aio_threads FILE THREADS PER [BYTES]: each thread submits PER reads of 1 MiB, or bytes, and ends. Waits for a line before the threads begin and for another
// before it takes the results; says what it has done, and the id of each thread.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static aio_context_t context;
static int file, per;
static long bytes = 1 << 20;
static char *buffer;

static void *submit(void *number) {
	printf("thread %ld\n", (long)syscall(SYS_gettid));
	for (int n = 0; n < per; n++) {
		struct iocb read = {
			.aio_fildes = file, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_buf = (long)buffer,
			.aio_nbytes = bytes, .aio_offset = ((long)number * per + n) * bytes,
		}, *reads = &read;
		if (syscall(SYS_io_submit, context, 1, &reads) != 1)
			perror("io_submit"), exit(2);
	}
	return NULL;
}

static void wait_for_line(void) {
	char line[16];
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		exit(3);
}

int main(int argc, char **argv) {
	int nr_threads = atoi(argv[2]), nr_read = 0;
	per = atoi(argv[3]);
	if (argc > 4)
		bytes = atol(argv[4]);
	buffer = malloc(bytes);
	file = open(argv[1], O_RDONLY);
	if (argc < 4 || file < 0 || syscall(SYS_io_setup, nr_threads * per, &context))
		perror("setup"), exit(2);
	printf("open\n");
	wait_for_line();
	for (long number = 0; number < nr_threads; number++) {
		pthread_t thread;
		pthread_create(&thread, NULL, submit, (void *)number);
		pthread_join(thread, NULL);
	}
	printf("submitted\n");
	wait_for_line();
	while (nr_read < nr_threads * per) {
		struct io_event event;
		if (syscall(SYS_io_getevents, context, 1, 1, &event, NULL) != 1 || event.res != bytes)
			fprintf(stderr, "result %lld\n", (long long)event.res), exit(2);
		nr_read++;
	}
	printf("read %d\n", nr_read);
	wait_for_line();
}
