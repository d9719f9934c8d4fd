/* SPDX-License-Identifier: BSD-3-Clause */
/* A fio engine that reads and writes a disk of an rnbd-server with librnbd; README.md tells its use.
 *
 * fio has no stable interface for engines: structures of one version mean nothing to another. The engine is
 * compiled with the headers of one, and refuses to run in others.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rnbd.h>

#include "fio.h"
#include "optgroup.h"

struct rnbd_engine_options {
	void *padding; /* fio's */
	char *uri;
	char *settings;
};

static struct fio_option options[] = {
	{
		.name	= "uri",
		.lname	= "URI of the disk",
		.help	= "rnbd+tcp://HOST[:PORT]/DISK",
		.type	= FIO_OPT_STR_STORE,
		.off1	= offsetof(struct rnbd_engine_options, uri),
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_NBD,
	},
	{
		.name	= "settings",
		.lname	= "Settings of librnbd",
		.help	= "KEY=VALUE, with spaces between several",
		.type	= FIO_OPT_STR_STORE,
		.off1	= offsetof(struct rnbd_engine_options, settings),
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_NBD,
	},
	{
		.name	= NULL,
	},
};

/* Of a job. */
struct engine {
	rnbd_disk *disk;
	struct rnbd_request *queued; /* until the next commit */
	int queued_count;
	struct rnbd_end *ends; /* of the last getevents */
	unsigned depth;
};

extern struct ioengine_ops ioengine;

/* False: the structures are not those that this was compiled with. */
static int is_right_fio(struct thread_data *td)
{
	if (!strcmp(fio_version_string, RNBD_FIO_VERSION) && td->io_ops == &ioengine)
		return 1;
	log_err("rnbd: this engine was built for %s and runs in no other fio; this one is %s\n",
		RNBD_FIO_VERSION, fio_version_string);
	return 0;
}

static void log_line(void *context, enum rnbd_log_level level, const char *line)
{
	(void)context;
	if (level >= RNBD_WARNING)
		log_err("rnbd: %s\n", line);
}

static rnbd_disk *open_disk(struct thread_data *td)
{
	const struct rnbd_engine_options *o = td->eo;
	struct rnbd_options given = {.size = sizeof(given), .log = log_line};
	struct rnbd_error error;
	char *words = strdup(o->settings ? o->settings : ""), *rest = NULL;
	const char **settings = words ? calloc(strlen(words) / 2 + 2, sizeof(*settings)) : NULL;
	unsigned count = 0;
	rnbd_disk *disk = NULL;

	if (!settings) {
		free(words);
		return NULL;
	}
	given.settings = settings;

	given.depth = td->o.iodepth > 0 ? td->o.iodepth : 1;
	for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
		settings[count++] = word;
	disk = rnbd_open(o->uri ? o->uri : "", &given, &error);
	if (!disk)
		log_err("rnbd: %s\n", error.text);
	free(settings);
	free(words);
	return disk;
}

/* Before jobs are forked: only the size stays. */
static int engine_setup(struct thread_data *td)
{
	struct rnbd_info info = {.size = sizeof(info)};
	rnbd_disk *disk;

	if (!is_right_fio(td))
		return 1;
	disk = open_disk(td);
	if (!disk)
		return 1;
	rnbd_describe(disk, &info);
	rnbd_close(disk);
	if (!td->files_index) {
		add_file(td, "rnbd", 0, 0);
		td->o.nr_files = td->o.nr_files ? td->o.nr_files : 1;
		td->o.open_files++;
	}
	td->files[0]->real_file_size = info.bytes;
	return 0;
}

static void engine_cleanup(struct thread_data *td)
{
	struct engine *engine = td->io_ops_data;

	if (!engine)
		return;
	rnbd_close(engine->disk);
	free(engine->queued);
	free(engine->ends);
	free(engine);
	td->io_ops_data = NULL;
}

static int engine_init(struct thread_data *td)
{
	struct engine *engine = calloc(1, sizeof(*engine));

	if (!engine)
		return 1;
	td->io_ops_data = engine;
	engine->depth = td->o.iodepth > 0 ? td->o.iodepth : 1;
	engine->queued = calloc(engine->depth, sizeof(*engine->queued));
	engine->ends = calloc(engine->depth, sizeof(*engine->ends));
	if (!engine->queued || !engine->ends)
		return 1;
	engine->disk = open_disk(td);
	return engine->disk ? 0 : 1;
}

static enum fio_q_status engine_queue(struct thread_data *td, struct io_u *io_u)
{
	struct engine *engine = td->io_ops_data;
	struct rnbd_request request = {.cookie = (uintptr_t)io_u};

	fio_ro_check(td, io_u);
	request.offset = io_u->offset;
	request.length = io_u->xfer_buflen;
	switch (io_u->ddir) {
	case DDIR_READ:
		request.operation = RNBD_READ;
		request.data = io_u->xfer_buf;
		break;
	case DDIR_WRITE:
		request.operation = RNBD_WRITE;
		request.data = io_u->xfer_buf;
		request.flags = td->o.sync_io ? RNBD_FUA : 0;
		break;
	case DDIR_TRIM:
		request.operation = RNBD_DISCARD;
		break;
	case DDIR_SYNC:
	case DDIR_DATASYNC:
		request.operation = RNBD_FLUSH;
		request.offset = request.length = 0;
		break;
	default:
		io_u->error = EINVAL;
		return FIO_Q_COMPLETED;
	}
	if ((unsigned)engine->queued_count == engine->depth)
		return FIO_Q_BUSY;
	engine->queued[engine->queued_count++] = request;
	return FIO_Q_QUEUED;
}

static int engine_commit(struct thread_data *td)
{
	struct engine *engine = td->io_ops_data;
	int count = engine->queued_count;

	if (count == 0)
		return 0;
	engine->queued_count = 0;
	if (rnbd_submit(engine->disk, engine->queued, count) == count)
		return 0;
	log_err("rnbd: %s\n", rnbd_strerror(errno));
	return -EIO;
}

static int engine_getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *t)
{
	struct engine *engine = td->io_ops_data;
	const int timeout = t ? (int)(t->tv_sec * 1000 + t->tv_nsec / 1000000) : -1;
	unsigned events = 0;

	do {
		const int wanted = (int)(max < engine->depth ? max : engine->depth) - (int)events;
		const int count = rnbd_reap(engine->disk, engine->ends + events, wanted, min == 0 ? 0 : timeout);

		if (count < 0)
			return -errno;
		events += count;
		if (count == 0 && (t || rnbd_pending(engine->disk) == 0))
			break;
	} while (events < min);
	return events;
}

static struct io_u *engine_event(struct thread_data *td, int event)
{
	struct engine *engine = td->io_ops_data;
	struct io_u *io_u = (struct io_u *)(uintptr_t)engine->ends[event].cookie;

	io_u->error = engine->ends[event].error;
	return io_u;
}

static int engine_nothing(struct thread_data *td, struct fio_file *file)
{
	return 0;
}

struct ioengine_ops ioengine = {
	.name			= "rnbd",
	.version		= FIO_IOOPS_VERSION,
	.flags			= FIO_DISKLESSIO | FIO_NOEXTEND,
	.setup			= engine_setup,
	.init			= engine_init,
	.cleanup		= engine_cleanup,
	.queue			= engine_queue,
	.commit			= engine_commit,
	.getevents		= engine_getevents,
	.event			= engine_event,
	.open_file		= engine_nothing,
	.invalidate		= engine_nothing,
	.options		= options,
	.option_struct_size	= sizeof(struct rnbd_engine_options),
};
