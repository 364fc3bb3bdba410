/* aio_reads FILE NR: has NR reads of 4 KiB of a file under way, each a mebibyte behind the one before. Says when the file is open
 * and waits for a line; says when all are submitted. Until the next line each that is refused is submitted again. Then waits for
 * all, and says how many were read. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BYTES 4096

static aio_context_t context;
static char buffer[BYTES];

static void fail(const char *what) {
	perror(what);
	exit(2);
}

static void say(const char *what) {
	puts(what);
	fflush(stdout);
}

static void submit(struct iocb *read) {
	while (syscall(SYS_io_submit, context, 1, &read) != 1)
		if (errno != EAGAIN)
			fail("io_submit");
}

int main(int argc, char **argv) {
	char line[16];
	int nr = argc == 3 ? atoi(argv[2]) : 0, nr_left = nr, nr_read = 0, goes_on = 1;
	int file = nr > 0 ? open(argv[1], O_RDONLY) : -1;
	struct iocb *reads = calloc(nr + 1, sizeof *reads);
	if (file < 0 || !reads || syscall(SYS_io_setup, nr, &context))
		fail("setup");
	say("open");
	if (!fgets(line, sizeof line, stdin))
		return 3;
	for (int n = 0; n < nr; n++) {
		reads[n] = (struct iocb){
			.aio_data = n, .aio_fildes = file, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_buf = (long)buffer,
			.aio_nbytes = BYTES, .aio_offset = (long)n << 20,
		};
		submit(&reads[n]);
	}
	say("submitted");
	while (nr_left > 0) {
		struct timespec within = { 0, 10000000 };
		struct pollfd told = { .fd = 0, .events = POLLIN };
		struct io_event event;
		long nr_ended = syscall(SYS_io_getevents, context, 1, 1, &event, &within);
		if (nr_ended < 0)
			fail("io_getevents");
		if (goes_on && poll(&told, 1, 0) != 0)
			goes_on = 0;
		if (nr_ended == 0)
			continue;
		if (event.res == -EAGAIN && goes_on) {
			submit(&reads[event.data]);
			continue;
		}
		if (event.res != -EAGAIN && event.res != BYTES) {
			fprintf(stderr, "result %lld\n", (long long)event.res);
			return 2;
		}
		nr_read += event.res == BYTES;
		nr_left--;
	}
	printf("%d read\n", nr_read);
	return 0;
}
