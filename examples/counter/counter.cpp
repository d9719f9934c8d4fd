// SPDX-License-Identifier: BSD-3-Clause
// A counter that is exact although its server is killed:
//   counter-counter serve URI FILE
//   counter-counter add URI TIMES [resend]    adds with 8 threads, and prints what came of it
//
// The library carries a request out once as long as the server lives. Beyond that the server must
// remember: it writes the id of each request together with its effect.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <rtrs.hpp>
#include <thread>

namespace {

/// One increment: written by one write(2), so it is in the file as a whole or not at all.
struct Record {
  rtrs_id id;
  std::uint64_t value;
};

class Counter {
 public:
  explicit Counter(const char* file) : file_{open(file, O_RDWR | O_CREAT | O_APPEND, 0644)} {
    Record record;
    while (read(file_, &record, sizeof(record)) == ssize_t{sizeof(record)}) remember(record);
  }

  void add(rtrs::Request request) {
    if (request.message() == "read") return answer(request, value_);
    if ((request.flags() & RTRS_MAYBE_DONE) != 0) {  // a server before this one may have done it
      const auto done = values_.find(key(request.id()));
      if (done != values_.end()) return answer(request, done->second);
    }
    const Record record{request.id(), value_ + 1};
    if (write(file_, &record, sizeof(record)) != ssize_t{sizeof(record)}) return request.fail(EIO);
    remember(record);
    answer(request, value_);
  }

 private:
  static std::string key(const rtrs_id& id) {
    return {reinterpret_cast<const char*>(&id), sizeof(id)};
  }
  static void answer(rtrs::Request& request, std::uint64_t value) {
    request.finish(rtrs::bytes(std::span{&value, 1}));
  }
  void remember(const Record& record) {
    value_ = record.value;
    values_[key(record.id)] = record.value;
  }

  int file_;
  std::uint64_t value_ = 0;
  std::map<std::string, std::uint64_t> values_;
};

int serve(const char* uri, const char* file) {
  const rtrs::StopSignal stop;
  Counter counter{file};
  auto server =
      rtrs::Server::listen(uri, [&](rtrs::Request request) { counter.add(std::move(request)); });
  if (!server) return std::fprintf(stderr, "%s\n", server.error().text.c_str()), 1;
  std::printf("listening on port %u\n", server->port());
  std::fflush(stdout);
  return stop.wait(), 0;
}

int add(const char* uri, unsigned times, unsigned flags) {
  auto client = rtrs::Client::connect(uri);
  if (!client) return std::fprintf(stderr, "%s\n", client.error().text.c_str()), 1;
  std::atomic<unsigned> left{times}, done{0}, unknown{0}, failed{0};
  const auto work = [&] {
    for (unsigned now = left; now != 0;) {
      if (!left.compare_exchange_weak(now, now - 1)) continue;
      std::array<std::uint64_t, 1> value{};
      const int error = client->call("add", {}, rtrs::room(value), flags).code();
      ++(error == 0 ? done : error == RTRS_UNKNOWN_OUTCOME ? unknown : failed);
      now = left;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  std::array<std::uint64_t, 1> value{};
  const auto read = client->call("read", {}, rtrs::room(value), RTRS_REPEATABLE);
  std::printf("done %u unknown %u failed %u counter %llu\n", done.load(), unknown.load(),
              failed.load(), static_cast<unsigned long long>(value[0]));
  return read ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 3 ? argv[1] : "";
  if (what == "serve") return serve(argv[2], argv[3]);
  const bool resend = argc > 4 && std::string{argv[4]} == "resend";
  if (what == "add") return add(argv[2], std::stoul(argv[3]), resend ? unsigned{RTRS_RESEND} : 0);
  return std::fputs("see counter.cpp\n", stderr), 2;
}
