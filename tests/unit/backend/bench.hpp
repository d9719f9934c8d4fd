// SPDX-License-Identifier: BSD-3-Clause
// Shared by the backend tests: an event loop on the test's thread, and requests that wait.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bridge/backend/backend.hpp"
#include "rdma/transport/reactor.hpp"

namespace rnbd::test {

using Bytes = std::vector<std::byte>;

/// `length` bytes that depend on `seed`.
Bytes pattern(std::size_t length, std::uint64_t seed);

/// A folder that disappears with everything in it.
class TemporaryFolder {
 public:
  /// Below /tmp (a disk) or below another folder, like /dev/shm (memory).
  explicit TemporaryFolder(const std::string& parent = "/tmp");
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  /// Makes a file of that size, all hole, and returns its path.
  std::string file(const std::string& name, std::uint64_t size) const;

 private:
  std::string path_;
};

std::unique_ptr<Backend> must_open(const std::string& specification,
                                   const BackendOptions& options = {});

/// One backend, one queue, one reactor that runs while the test waits.
class Bench {
 public:
  explicit Bench(const std::string& specification, const BackendOptions& options = {})
      : Bench{must_open(specification, options)} {}
  explicit Bench(std::unique_ptr<Backend> backend);

  Backend& backend() { return *backend_; }
  const BackendInfo& info() const { return backend_->info(); }
  rtrs::Reactor& reactor() { return reactor_; }

  /// Submits all at once and waits until all are done; each one's error in order.
  std::vector<int> run(std::vector<BackendRequest>& requests);
  int run(BackendRequest& request);

  Bytes read(std::uint64_t offset, std::size_t length);
  int write(std::uint64_t offset, const Bytes& data, bool fua = false);
  int flush();
  int discard(std::uint64_t offset, std::uint64_t length, bool fua = false);
  struct Zero {
    bool no_unmap = false;
    bool fast = false;
    bool fua = false;
  };
  int zero(std::uint64_t offset, std::uint64_t length, Zero how);
  std::vector<BackendExtent> extents(std::uint64_t offset, std::uint64_t length,
                                     std::size_t max = 1000);

 private:
  std::unique_ptr<Backend> backend_;
  rtrs::Reactor reactor_{0};
  std::unique_ptr<BackendQueue> queue_;
};

/// Checks of every backend that keeps written data. `backend` is opened anew for each
/// check, with 4 MiB and `extra` bytes, all zeroes.
struct Storage {
  std::unique_ptr<Backend> backend;
  bool discard_zeroes = true;  ///< discarded blocks read as zeroes
  bool shows_holes = true;     ///< if it tells extents at all
};
void check_conformance(Storage storage);

}  // namespace rnbd::test
