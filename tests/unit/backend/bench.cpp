// SPDX-License-Identifier: BSD-3-Clause
#include "tests/unit/backend/bench.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace rnbd::test {

Bytes pattern(std::size_t length, std::uint64_t seed) {
  Bytes bytes(length);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15 + 1;
  for (std::byte& byte : bytes) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<std::byte>(state >> 32);
  }
  return bytes;
}

TemporaryFolder::TemporaryFolder(const std::string& parent) {
  path_ = parent + "/backend-test-XXXXXX";
  REQUIRE(mkdtemp(path_.data()) != nullptr);
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

std::string TemporaryFolder::file(const std::string& name, std::uint64_t size) const {
  const std::string path = path_ + "/" + name;
  { std::ofstream{path}; }
  std::filesystem::resize_file(path, size);
  return path;
}

std::unique_ptr<Backend> must_open(const std::string& specification,
                                   const BackendOptions& options) {
  auto backend = open_backend(specification, options);
  REQUIRE_MESSAGE(backend.has_value(), backend.error().text);
  return std::move(*backend);
}

Bench::Bench(std::unique_ptr<Backend> backend)
    : backend_{std::move(backend)}, queue_{backend_->open_queue(&reactor_)} {}

std::vector<int> Bench::run(std::vector<BackendRequest>& requests) {
  struct Waiting {
    rtrs::Reactor& reactor;
    std::vector<BackendRequest>& requests;
    std::vector<int> errors;
    std::size_t left;
  } waiting{reactor_, requests, std::vector<int>(requests.size(), -1), requests.size()};
  reactor_.io().restart();
  for (BackendRequest& request : requests) {
    request.context = &waiting;
    request.done = [](BackendRequest& finished, int error) {
      auto& all = *static_cast<Waiting*>(finished.context);
      const auto index = static_cast<std::size_t>(&finished - all.requests.data());
      CHECK(all.errors[index] == -1);
      all.errors[index] = error;
      if (--all.left == 0) all.reactor.stop();
    };
  }
  for (BackendRequest& request : requests) queue_->submit(request);
  if (waiting.left > 0) reactor_.run();
  CHECK(waiting.left == 0);
  return waiting.errors;
}

int Bench::run(BackendRequest& request) {
  std::vector<BackendRequest> one{request};
  return run(one).front();
}

Bytes Bench::read(std::uint64_t offset, std::size_t length) {
  Bytes data(length, std::byte{0xA5});
  BackendRequest request;
  request.operation = BackendOperation::read;
  request.offset = offset;
  request.length = length;
  request.data = data.data();
  CHECK(run(request) == 0);
  return data;
}

int Bench::write(std::uint64_t offset, const Bytes& data, bool fua) {
  Bytes copy = data;
  BackendRequest request;
  request.operation = BackendOperation::write;
  request.offset = offset;
  request.length = copy.size();
  request.data = copy.data();
  request.fua = fua;
  return run(request);
}

int Bench::flush() {
  BackendRequest request;
  request.operation = BackendOperation::flush;
  return run(request);
}

int Bench::discard(std::uint64_t offset, std::uint64_t length, bool fua) {
  BackendRequest request;
  request.operation = BackendOperation::discard;
  request.offset = offset;
  request.length = length;
  request.fua = fua;
  return run(request);
}

int Bench::zero(std::uint64_t offset, std::uint64_t length, Zero how) {
  BackendRequest request;
  request.operation = BackendOperation::write_zeroes;
  request.offset = offset;
  request.length = length;
  request.no_unmap = how.no_unmap;
  request.fast = how.fast;
  request.fua = how.fua;
  return run(request);
}

std::vector<BackendExtent> Bench::extents(std::uint64_t offset, std::uint64_t length,
                                          std::size_t max) {
  std::vector<BackendExtent> result;
  BackendRequest request;
  request.operation = BackendOperation::extents;
  request.offset = offset;
  request.length = length;
  request.extents = &result;
  request.max_extents = max;
  CHECK(run(request) == 0);
  return result;
}

}  // namespace rnbd::test
