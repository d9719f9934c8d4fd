/* SPDX-License-Identifier: BSD-3-Clause */
/* Sends a text and prints what comes back: echo-client.c [URI] [TEXT] */
#include <rtrs.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
  struct rtrs_error why;
  rtrs_client *client = rtrs_connect(argc > 1 ? argv[1] : "rtrs+tcp://127.0.0.1:4321", NULL, &why);
  if (client == NULL) return fprintf(stderr, "%s\n", why.text), 1;

  char *text = argc > 2 ? argv[2] : "hello";
  const struct iovec data = {.iov_base = text, .iov_len = strlen(text)};
  void *answer;
  size_t length;
  const int error = rtrs_ask(client, "echo", 4, &data, 1, 1 << 20, &answer, &length, 0);
  if (error != 0) return fprintf(stderr, "%s\n", rtrs_strerror(error)), 1;
  printf("%.*s\n", (int)length, length != 0 ? (const char *)answer : "");
  rtrs_free(answer);
  rtrs_disconnect(client);
  return 0;
}
