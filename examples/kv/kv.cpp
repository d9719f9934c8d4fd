// SPDX-License-Identifier: BSD-3-Clause
// A key-value service: kv-kv serve URI | kv-kv put URI KEY VALUE | kv-kv get URI KEY
#include <cstdio>
#include <map>
#include <rtrs.hpp>

int serve(const char* uri) {
  const rtrs::StopSignal stop;
  std::map<std::string, std::string> values;  // no lock: one event loop runs all handlers
  auto server = rtrs::Server::listen(uri, [&](rtrs::Request request) {
    const std::string key{request.message().substr(1)};
    if (request.message().starts_with('P')) {
      values[key] = rtrs::text(request.data());
      return request.finish();
    }
    const auto found = values.find(key);
    found == values.end() ? request.fail(ENOENT) : request.finish(found->second);
  });
  if (!server) return std::fprintf(stderr, "%s\n", server.error().text.c_str()), 1;
  std::printf("listening on port %u\n", server->port());
  std::fflush(stdout);
  return stop.wait(), 0;
}

int main(int argc, char** argv) {
  const std::string what = argc > 2 ? argv[1] : "";
  if (what == "serve") return serve(argv[2]);
  if (what != (argc == 5 ? "put" : "get") || argc < 4) return std::fputs("see kv.cpp\n", stderr), 2;
  auto client = rtrs::Client::connect(argv[2]);
  if (!client) return std::fprintf(stderr, "%s\n", client.error().text.c_str()), 1;
  const std::string key = argv[3], value = argc == 5 ? argv[4] : "";
  const auto answer =
      what == "put" ? client->ask("P" + key, rtrs::bytes(value)) : client->ask("G" + key);
  if (!answer) return std::fprintf(stderr, "%s\n", answer.error().text.c_str()), 1;
  if (what == "get") std::printf("%s\n", std::string{answer->text()}.c_str());
}
