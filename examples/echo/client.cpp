// SPDX-License-Identifier: BSD-3-Clause
// Sends a text and prints what comes back: echo-client [URI] [TEXT]
#include <cstdio>
#include <rtrs.hpp>

int main(int argc, char** argv) {
  auto client = rtrs::Client::connect(argc > 1 ? argv[1] : "rtrs+tcp://127.0.0.1:4321");
  if (!client) return std::fprintf(stderr, "%s\n", client.error().text.c_str()), 1;

  const std::string text = argc > 2 ? argv[2] : "hello";
  const auto answer = client->ask("echo", rtrs::bytes(text));
  if (!answer) return std::fprintf(stderr, "%s\n", answer.error().text.c_str()), 1;
  std::printf("%s\n", std::string{answer->text()}.c_str());
}
