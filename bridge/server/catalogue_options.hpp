// SPDX-License-Identifier: BSD-3-Clause
// The choices of the operator and of the program that the whole catalogue follows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "bridge/backend/backend.hpp"
#include "bridge/server/annex.hpp"
#include "bridge/server/writer_reservations.hpp"
#include "rdma/core/time.hpp"

namespace rnbd {

using BackendOpener = std::function<tl::expected<std::unique_ptr<Backend>, Failure>(
    const std::string& specification, const BackendOptions& options)>;

struct CatalogueOptions {
  bool direct = false;      ///< O_DIRECT for every export
  bool use_uring = true;    ///< false: a thread pool instead of io_uring
  bool make_files = true;   ///< BackendOptions: false for a look
  std::size_t queues = 1;   ///< BackendOptions: as many as there are reactors
  BackendOpener open = {};  ///< empty: open_backend()
  /// The lack that keeps an export waiting whose storage was just opened; error 0: none. Null:
  /// nothing is asked. Files of the search path have rules of their own.
  std::function<Failure(const std::string& storage)> lack = nullptr;
  rtrs::Log log = {};  ///< given to the backends, as the next
  std::function<void()> on_loss = {};
  /// Called when a named export that clients may write to gets the storage at its path. May block.
  std::function<void(const std::string& name, const std::string& path, const wire::Uuid& storage)>
      on_served = {};
  /// For this long after the start, an OPEN waits for a file of the search path that is in use: I/O
  /// of a killed server still holds its files.
  rtrs::Duration patience{};
  /// Stores the records of reservations beyond a crash; null: they are lost.
  std::shared_ptr<WriterStore> reservations = {};
  ServerAnnexes annexes = {};
};

}  // namespace rnbd
