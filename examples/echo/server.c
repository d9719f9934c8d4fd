/* SPDX-License-Identifier: BSD-3-Clause */
/* Answers each request with its data: echo-server.c [URI] */
#include <rtrs.h>
#include <signal.h>
#include <stdio.h>

static void echo(void *context, const struct rtrs_incoming *incoming) {
  (void)context;
  rtrs_finish(incoming->request, 0, incoming->data, incoming->data_length);
}

int main(int argc, char **argv) {
  sigset_t stop; /* blocked before any thread exists, so that sigwait() gets it */
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  sigprocmask(SIG_BLOCK, &stop, NULL);
  const struct rtrs_server_ops ops = {.size = sizeof(ops), .request = echo};
  struct rtrs_error why;
  const char *uri = argc > 1 ? argv[1] : "rtrs+tcp://127.0.0.1:4321";
  rtrs_server *server = rtrs_listen(uri, &ops, NULL, NULL, &why);
  if (server == NULL) return fprintf(stderr, "%s\n", why.text), 1;
  printf("listening on port %u\n", rtrs_server_port(server));
  fflush(stdout);
  int signal_number;
  sigwait(&stop, &signal_number);
  return rtrs_server_close(server, 1000);
}
