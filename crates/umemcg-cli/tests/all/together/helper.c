// helper: reads and writes files through mappings and asynchronously, as a process of its own, which may be in another group than
// its master and survives SIGBUS. Takes lines `r|w|a|A PATH OFFSET LENGTH VALUE`: mapped read and write, asynchronous read and
// write. Answers each with a line: `w`, or `r` and runs of equal bytes as `VALUE*COUNT`, `bus` when the mapping gave way, with
// the reason, or `error ERRNO`. What was written through a mapping has gone through msync(MS_SYNC) before the answer.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static sigjmp_buf gave_way;
static char *volatile gave_way_at;

static void on_bus(int signal, siginfo_t *info, void *context) {
	(void)signal;
	(void)context;
	gave_way_at = info->si_addr;
	siglongjmp(gave_way, 1);
}

static void print_runs(const unsigned char *bytes, long length) {
	for (long at = 0, end; at < length; at = end) {
		for (end = at + 1; end < length && bytes[end] == bytes[at]; end++) {}
		printf(" %d*%ld", bytes[at], end - at);
	}
}

// A copy first: printing may fault only where SIGBUS is expected.
static unsigned char copy[1 << 20];

// Why the mapping gave way: `bus OFFSET LENGTH NUMBER ERRNO`, where, the length of the file, and what a read of the same bytes
// says.
static void print_reason(int file, long at, long offset, long length) {
	struct stat stat = { 0 };
	fstat(file, &stat);
	errno = 0;
	long got = pread(file, copy, length, offset);
	printf("bus %ld %ld %ld %d\n", at, (long)stat.st_size, got, errno);
}

static void work_mapped(char what, const char *path, long offset, long length, int value) {
	long start = offset & ~4095L;
	int file = open(path, what == 'w' ? O_RDWR : O_RDONLY);
	if (file < 0) {
		printf("error %d\n", errno);
		return;
	}
	int protection = PROT_READ | (what == 'w' ? PROT_WRITE : 0);
	size_t mapped = length + (offset - start);
	unsigned char *map = mmap(NULL, mapped, protection, MAP_SHARED, file, start);
	if (map == MAP_FAILED) {
		printf("error %d\n", errno);
		close(file);
		return;
	}
	// Nothing is read ahead: pages beside the range are others' to change.
	madvise(map, mapped, MADV_RANDOM);
	if (sigsetjmp(gave_way, 1)) {
		print_reason(file, start + (gave_way_at - (char *)map), offset, length);
	} else if (what == 'w') {
		memset(map + (offset - start), value, length);
		if (msync(map, mapped, MS_SYNC))
			printf("error %d\n", errno);
		else
			printf("w\n");
	} else {
		memcpy(copy, map + (offset - start), length);
		printf("r");
		print_runs(copy, length);
		printf("\n");
	}
	munmap(map, mapped);
	close(file);
}

// Pieces of a range that are under way together.
enum { NR_PIECES = 6 };

// An error, or 0. A piece that is done in part counts as EREMOTEIO, which nothing else says.
static int transfer(int file, int opcode, long offset, long length) {
	static aio_context_t context;
	struct iocb pieces[NR_PIECES], *list[NR_PIECES];
	struct io_event events[NR_PIECES];
	long each = (length / NR_PIECES + 511) & ~511L, nr = 0, submitted = 0;
	if (!context && syscall(SYS_io_setup, NR_PIECES, &context))
		return errno;
	for (long at = 0; at < length; at += each, nr++) {
		long bytes = length - at < each ? length - at : each;
		pieces[nr] = (struct iocb) {
			.aio_fildes = file, .aio_lio_opcode = opcode, .aio_buf = (long)(copy + at),
			.aio_nbytes = bytes, .aio_offset = offset + at,
		};
		list[nr] = &pieces[nr];
	}
	int error = 0;
	while (submitted < nr) {
		long now = syscall(SYS_io_submit, context, nr - submitted, list + submitted);
		if (now < 0) {
			error = errno;
			break;
		}
		submitted += now;
	}
	for (long got = 0; got < submitted;) {
		long now = syscall(SYS_io_getevents, context, 1, submitted - got, events, NULL);
		if (now < 0 && errno != EINTR)
			return errno;
		for (long n = 0; n < now; n++, got++) {
			struct iocb *piece = (struct iocb *)(long)events[n].obj;
			if (events[n].res != (long)piece->aio_nbytes)
				error = events[n].res < 0 ? -events[n].res : EREMOTEIO;
		}
	}
	return error;
}

static void work_asynchronously(char what, const char *path, long offset, long length, int value) {
	int file = open(path, (what == 'A' ? O_WRONLY : O_RDONLY) | O_DIRECT);
	memset(copy, value, length);
	int error = file < 0 ? errno : transfer(file, what == 'A' ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD, offset, length);
	if (error) {
		printf("error %d\n", error);
	} else if (what == 'A') {
		printf("w\n");
	} else {
		printf("r");
		print_runs(copy, length);
		printf("\n");
	}
	if (file >= 0)
		close(file);
}

int main(void) {
	struct sigaction action = { .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO };
	sigaction(SIGBUS, &action, NULL);
	char line[512], path[256], what;
	while (fgets(line, sizeof line, stdin)) {
		long offset, length;
		int value;
		if (sscanf(line, "%c %255s %ld %ld %d", &what, path, &offset, &length, &value) != 5 || length > (long)sizeof copy)
			return 2;
		(what == 'a' || what == 'A' ? work_asynchronously : work_mapped)(what, path, offset, length, value);
		fflush(stdout);
	}
	return 0;
}
