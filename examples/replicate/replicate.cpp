// SPDX-License-Identifier: BSD-3-Clause
// Writes to several key-value servers at once, and is content when most have it:
//   replicate-replicate KEY VALUE URI...      (servers: kv-kv serve URI)
#include <poll.h>

#include <cstdio>
#include <rtrs.hpp>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 4) return std::fputs("replicate KEY VALUE URI...\n", stderr), 2;
  const std::string message = "P" + std::string{argv[1]};
  const std::string value = argv[2];
  auto options = rtrs::defaults<rtrs::ClientOptions>();
  options.connect_timeout_ms = options.no_path_timeout_ms = 1000;

  std::vector<rtrs::Client> clients;
  const auto servers = static_cast<std::size_t>(argc - 3);
  for (std::size_t i = 0; i < servers; ++i) {
    auto client = rtrs::Client::connect(argv[3 + i], options);
    if (client) clients.push_back(std::move(*client));
  }
  std::size_t ended = 0, stored = 0;
  for (rtrs::Client& client : clients) {  // all at once
    const int error = client.enqueue(message, rtrs::bytes(value), {}, [&](int failed, std::size_t) {
      ++ended;
      if (failed == 0) ++stored;
    });
    if (error != 0) ++ended;
  }
  std::vector<pollfd> descriptors;
  for (rtrs::Client& client : clients) descriptors.push_back({client.descriptor(), POLLIN, 0});
  while (ended < clients.size() && 2 * stored <= servers) {
    poll(descriptors.data(), descriptors.size(), -1);
    for (rtrs::Client& client : clients) client.run_ended();
  }
  std::printf("stored by %zu of %zu\n", stored, servers);
  return 2 * stored > servers ? 0 : 1;
}
