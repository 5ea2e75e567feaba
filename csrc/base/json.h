// JSON: a value, a strict reader and a writer. Numbers without fraction and exponent are integers of 64 bits.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace ark::json {

struct Member;
class Value;
using Array = std::vector<Value>;
using Object = std::vector<Member>;  // in the order of the text; keys are unique

class Value {
 public:
  Value() = default;
  explicit Value(bool x) : data_(x) {}
  explicit Value(int64_t x) : data_(x) {}
  explicit Value(double x) : data_(x) {}
  explicit Value(std::string x) : data_(std::move(x)) {}
  explicit Value(Array x) : data_(std::move(x)) {}
  explicit Value(Object x) : data_(std::move(x)) {}

  /// The content if it is a T (nullptr_t, bool, int64_t, double, std::string, Array, Object), else null.
  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&data_);
  }
  /// "null", "bool", "integer", "number", "string", "array" or "object".
  const char* type_name() const;
  /// The member `key` of an object, or null (also when this is no object).
  const Value* find(std::string_view key) const;

 private:
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object> data_;
};

struct Member {
  std::string key;
  Value value;
};

/// Reads exactly one value; throws UserError with line and column on anything that is not JSON, on a key given twice,
/// on an integer beyond 64 bits and on more than 200 levels of nesting.
Value parse(std::string_view text);

/// Appends to a string. Containers down to `lines_depth` levels put each of their elements on a line of its own.
class Writer {
 public:
  explicit Writer(int lines_depth = 2) : lines_depth_(lines_depth) {}
  void begin_object() { open('{'); }
  void end_object() { close('}'); }
  void begin_array() { open('['); }
  void end_array() { close(']'); }
  void key(std::string_view name);
  void value(bool x);
  void value(int64_t x);
  void value(double x);  // nan, inf and -inf as strings
  void value(std::string_view x);
  void null();
  std::string take() { return std::move(text_); }

 private:
  void open(char bracket);
  void close(char bracket);
  void separate();  // comma and line break before an element
  void quote(std::string_view x);

  std::string text_;
  int lines_depth_;
  int depth_ = 0;
  bool first_ = true, after_key_ = false;
};

}  // namespace ark::json
