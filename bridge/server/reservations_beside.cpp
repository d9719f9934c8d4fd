// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/reservations_beside.hpp"

#include <sstream>

#include "bridge/protocol/uuid.hpp"

namespace rnbd {
namespace {

constexpr char kNote[] = "rnbd_writers";
constexpr char kForm[] = "1";              ///< of the text
constexpr char kFormWithExpelled[] = "2";  ///< older servers do not know it
constexpr char kExpelled[] = "evicted";    ///< in front of a session

/// A session's number is its own. So a pair with the number of the pair before it is no session: it
/// is the claim that got the number, in a way that older servers can read.
void take_claim(WriterRecord& record) {
  std::vector<WriterRecord::Part>& parts = record.parts;
  if (parts.size() != 2 || parts[0].number != parts[1].number) return;
  if (parts[1].number == record.last) record.claim = parts[1].session;
  parts.pop_back();
}

}  // namespace

std::string text_of(const WriterRecord& record) {
  std::ostringstream text;
  text << (record.expelled.empty() ? kForm : kFormWithExpelled) << ' ' << record.origin << ' '
       << record.last;
  for (const auto& part : record.parts) {
    text << ' ' << uuid_text(part.session) << ' ' << part.number;
  }
  if (record.claim != wire::Uuid{}) text << ' ' << uuid_text(record.claim) << ' ' << record.last;
  for (const auto& part : record.expelled) {
    text << ' ' << kExpelled << ' ' << uuid_text(part.session) << ' ' << part.number;
  }
  return text.str();
}

tl::expected<WriterRecord, std::string> parse_writer_record(std::string_view text) {
  if (text.empty()) return WriterRecord{};
  std::istringstream words{std::string{text}};
  std::string form, uuid;
  WriterRecord record;
  words >> form >> record.origin >> record.last;
  bool well = (form == kForm || form == kFormWithExpelled) && !words.fail() && record.origin != 0;
  while (well && words >> uuid) {
    const bool expelled = form == kFormWithExpelled && uuid == kExpelled;
    if (expelled) words >> uuid;
    const auto session = parse_uuid(uuid);
    std::uint32_t number = 0;
    well = session && words >> number;
    if (well) (expelled ? record.expelled : record.parts).push_back({*session, number});
  }
  take_claim(record);
  if (well && words.eof()) return record;
  return tl::unexpected(std::string{"the note "} + kNote +
                        " beside the storage is damaged; if no client has been cut off while it "
                        "wrote, remove it");
}

void ReservationsBeside::opened(const wire::Uuid& storage,
                                const std::shared_ptr<BackendNotes>& notes) {
  if (notes == nullptr) return;
  const std::lock_guard lock{mutex_};
  beside_[storage] = notes;
}

std::optional<std::shared_ptr<BackendNotes>> ReservationsBeside::notes_of(
    const wire::Uuid& storage) {
  const std::lock_guard lock{mutex_};
  const auto found = beside_.find(storage);
  if (found == beside_.end()) return std::nullopt;
  return found->second.lock();
}

/// Nothing is known of storage that is closed, and its next user finds the note.
tl::expected<WriterRecord, std::string> ReservationsBeside::load(const wire::Uuid& storage) {
  const auto notes = notes_of(storage);
  if (!notes) return elsewhere_->load(storage);
  if (*notes == nullptr) return WriterRecord{};
  const auto text = (*notes)->load(kNote);
  if (!text) return tl::unexpected(text.error());
  return parse_writer_record(*text);
}

tl::expected<void, std::string> ReservationsBeside::save(const wire::Uuid& storage,
                                                         const WriterRecord& record) {
  const auto notes = notes_of(storage);
  if (!notes) return elsewhere_->save(storage, record);
  if (*notes == nullptr) return tl::unexpected(std::string{"the storage is closed"});
  return (*notes)->save(kNote, text_of(record));
}

bool ReservationsBeside::saves_together(const wire::Uuid& storage) {
  {
    const std::lock_guard lock{mutex_};
    if (beside_.contains(storage)) return false;
  }
  return elsewhere_->saves_together(storage);
}

/// Each note is a question to another server. Those without one are saved together.
std::vector<WriterStore::Saved> ReservationsBeside::save_all(std::span<const Entry> entries) {
  std::vector<Saved> results(entries.size());
  std::vector<Entry> others;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (notes_of(entries[i].storage)) {
      results[i] = save(entries[i].storage, entries[i].record);
      continue;
    }
    others.push_back(entries[i]);
    places.push_back(i);
  }
  auto saved = elsewhere_->save_all(others);
  for (std::size_t i = 0; i < places.size(); ++i) results[places[i]] = std::move(saved[i]);
  return results;
}

}  // namespace rnbd
