// SPDX-License-Identifier: BSD-3-Clause
// Answers each request with its data: echo-server [URI]
#include <cstdio>
#include <rtrs.hpp>

int main(int argc, char** argv) {
  const rtrs::StopSignal stop;
  auto server = rtrs::Server::listen(argc > 1 ? argv[1] : "rtrs+tcp://127.0.0.1:4321",
                                     [](rtrs::Request request) { request.finish(request.data()); });
  if (!server) return std::fprintf(stderr, "%s\n", server.error().text.c_str()), 1;
  std::printf("listening on port %u\n", server->port());
  std::fflush(stdout);
  stop.wait();
}
