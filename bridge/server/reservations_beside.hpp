// SPDX-License-Identifier: BSD-3-Clause
// Records of reservations, stored beside the blocks so that every server of the storage finds them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

#include "bridge/backend/backend.hpp"
#include "bridge/server/writer_reservations.hpp"

namespace rnbd {

/// As one line of text.
std::string text_of(const WriterRecord& record);
/// "" means that no number was given yet. Errors: the record is damaged.
tl::expected<WriterRecord, std::string> parse_writer_record(std::string_view text);

/// Keeps the records of storage that has room for notes there, and all others elsewhere.
class ReservationsBeside final : public WriterStore {
 public:
  explicit ReservationsBeside(std::shared_ptr<WriterStore> elsewhere)
      : elsewhere_{std::move(elsewhere)} {}

  bool knows_all() const override { return elsewhere_->knows_all(); }
  void lock() override { elsewhere_->lock(); }
  void unlock() override { elsewhere_->unlock(); }
  void opened(const wire::Uuid& storage, const std::shared_ptr<BackendNotes>& notes) override;
  tl::expected<WriterRecord, std::string> load(const wire::Uuid& storage) override;
  tl::expected<void, std::string> save(const wire::Uuid& storage,
                                       const WriterRecord& record) override;
  bool saves_together(const wire::Uuid& storage) override;
  std::vector<Saved> save_all(std::span<const Entry> entries) override;

 private:
  /// None: the record is kept elsewhere. Null: the storage is closed.
  std::optional<std::shared_ptr<BackendNotes>> notes_of(const wire::Uuid& storage);

  std::shared_ptr<WriterStore> elsewhere_;
  std::mutex mutex_;
  std::map<wire::Uuid, std::weak_ptr<BackendNotes>> beside_;  ///< guarded by mutex_
};

}  // namespace rnbd
