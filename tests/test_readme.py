from readme_tables import README, filled

def test_table_is_current():
  text = README.read_text()
  assert filled(text) == text, "run: make readme"
