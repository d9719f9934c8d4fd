// SPDX-License-Identifier: BSD-3-Clause
// Owners of a session and of a path that only note what they hear.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "rdma/core/server/path.hpp"
#include "rdma/core/server/session.hpp"

namespace rtrs::test {

struct SessionOwner final : ServerSessionOwner {
  void on_lingering() override { ++lingered; }
  void on_gone() override { ++gone; }

  int lingered = 0;
  int gone = 0;
};

/// Lets the path in, gives it memory, and answers errors at once or when the test does.
struct PathOwner : ServerPathOwner {
  PathOwner(ServerSession& s, ServerPathOptions options)
      : session{s}, path{s, *this, std::move(options)} {}
  virtual ~PathOwner() = default;
  PathRefusal admit(std::string_view) override {
    ++admissions;
    return refusal;
  }
  bool provide_chunks() override {
    path.set_chunks(memory);
    return has_memory;
  }
  void on_connected() override {}
  void on_fenced(Complaint, bool) override {}
  void on_unused(std::span<const MutableBytes>, std::uint64_t) override {}
  void on_gone() override {}
  void delay_answer(ServerRequest& request, int error) override {
    if (!delays) return session.answer(request, error);
    delayed = &request;
  }

  ServerSession& session;
  std::vector<std::byte> memory = std::vector<std::byte>(4 * std::size_t{8192});
  PathRefusal refusal;
  int admissions = 0;
  bool has_memory = true;
  bool delays = false;
  ServerRequest* delayed = nullptr;
  ServerPath path;  ///< goes first
};

}  // namespace rtrs::test
