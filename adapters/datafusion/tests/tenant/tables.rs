//! The TPC-H tables `lineitem` and `orders` as directories of Parquet files.

use std::fs::{File, create_dir};
use std::path::Path;

use datafusion::arrow::array::RecordBatchReader;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use tpchgen::generators::{LineItemGenerator, OrderGenerator};
use tpchgen_arrow::{LineItemArrow, OrderArrow};

/// Files of each table.
const FILES: i32 = 4;
/// Rows of a row group.
const ROW_GROUP_ROWS: usize = 32 << 10;

/// Writes both tables below `dir`. Scale 1 is six million lines.
pub(crate) fn generate(dir: &Path, scale: f64) {
    for table in ["lineitem", "orders"] {
        create_dir(dir.join(table)).expect("a table");
    }
    for part in 1..=FILES {
        let file =
            |table: &str| File::create(dir.join(table).join(format!("{part}.parquet"))).expect("a file");
        write(file("lineitem"), LineItemArrow::new(LineItemGenerator::new(scale, part, FILES)));
        write(file("orders"), OrderArrow::new(OrderGenerator::new(scale, part, FILES)));
    }
}

fn write(file: File, table: impl RecordBatchReader) {
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(ROW_GROUP_ROWS)).build();
    let mut writer = ArrowWriter::try_new(file, table.schema(), Some(properties)).expect("a writer");
    for batch in table {
        writer.write(&batch.expect("a batch")).expect("written");
    }
    writer.close().expect("closed");
}
